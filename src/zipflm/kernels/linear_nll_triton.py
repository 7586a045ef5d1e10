"""`linear_nll` for narrow bands on a GPU: logits never leave the registers.

A tile is some rows by some words; the tiles of all active rows are distributed evenly over as many
programs as the device runs at once, and results for the same rows are combined afterwards in a
fixed order: equal inputs give equal bits.

Shapes: N tokens (active ones first), E width, V words, S segments (all that one program has of
one block of rows), R rows of a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipflm.kernels.operators import Nll, nll_operator, nll_sum_operator

# Exponentials are to the base of 2 on the device: one instruction less for each.
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def rows_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    count_ptr,  # [1] number of active rows
    lse_ptr,  # [S, R] float32, to the base of 2
    mean_ptr,  # [S, R, E] float32
    num_words,
    width,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    EXACT: tl.constexpr,  # WIDTH is the width, not more
    WITH_MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Log-sum-exp of each row's logits and mean of the weights, over this program's tiles."""
    program = tl.program_id(0)
    count = tl.load(count_ptr)
    num_tiles = tl.cdiv(num_words, WORDS)
    place, end = _share(program, tl.num_programs(0), count, num_tiles, ROWS)
    columns = tl.arange(0, WIDTH)
    while place < end:
        row_block = (place // num_tiles).to(tl.int32)
        first = (place % num_tiles).to(tl.int32)
        last = tl.minimum(num_tiles, first + end - place).to(tl.int32)
        rows = row_block * ROWS + tl.arange(0, ROWS)
        hidden = _load(hidden_ptr, rows, columns, count, width, True, EXACT)
        # Online: `top` is the largest logit so far, `total` the sum of exponentials below it.
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mean = tl.zeros([ROWS, WIDTH], tl.float32)
        whole = tl.minimum(last, num_words // WORDS)
        for tile in range(first, whole):
            # fmt: off
            top, total, mean = _absorb_words(
                top, total, mean, hidden, weight_ptr, tile * WORDS, columns, num_words, width,
                WORDS, False, EXACT, WITH_MEAN, PRECISION,
            )
            # fmt: on
        if last > whole:
            # fmt: off
            top, total, mean = _absorb_words(
                top, total, mean, hidden, weight_ptr, whole * WORDS, columns, num_words, width,
                WORDS, True, EXACT, WITH_MEAN, PRECISION,
            )
            # fmt: on
        places = (program + row_block).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        tl.store(lse_ptr + places, top + tl.log2(total))
        if WITH_MEAN:
            tl.store(
                mean_ptr + places[:, None] * width + columns[None, :],
                mean / total[:, None],
                mask=(columns < width)[None, :],
            )
        place += last - first


@triton.jit
def _absorb_words(
    top,
    total,
    mean,
    hidden,
    weight_ptr,
    start,
    columns,
    num_words,
    width,
    WORDS: tl.constexpr,
    BOUNDED: tl.constexpr,  # some of the words may lie behind the end
    EXACT: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    words = start + tl.arange(0, WORDS)
    weight = _load(weight_ptr, words, columns, num_words, width, BOUNDED, EXACT)
    logits = tl.dot(hidden, tl.trans(weight), input_precision=PRECISION)
    if BOUNDED:
        logits = tl.where((words < num_words)[None, :], logits, float("-inf"))
    new_top = tl.maximum(top, tl.max(logits, 1) * _LOG2_E)
    exps = tl.exp2(logits * _LOG2_E - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(exps, 1)
    if WITH_MEAN:
        mean = tl.dot(
            exps.to(weight.dtype), weight, mean * shrink[:, None], input_precision=PRECISION
        )
    return new_top, total, mean


@triton.jit
def join_kernel(
    segment_lse_ptr,  # [S, R] float32, to the base of 2
    mean_ptr,  # [S, R, E] float32
    hidden_ptr,  # [N, E], active rows in front
    weight_ptr,  # [V, E]
    order_ptr,  # [N] where the rows come from; those below are in that order of tokens
    count_ptr,  # [1]
    targets_ptr,  # [N]; -1 for none of these words
    grad_ptr,  # [N] of nll, if WITH_MEAN
    whole_lse_ptr,  # [N] over these words and others, if IS_PART
    nll_ptr,  # [N] out
    lse_ptr,  # [N] out
    d_hidden_ptr,  # [N, E] out, if WITH_MEAN
    num_rows,
    num_words,
    width,
    programs,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    SOME: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    WITH_GRAD: tl.constexpr,
    IS_PART: tl.constexpr,
):
    """What programs of `rows_kernel` found out about some rows; zeros for inactive ones."""
    start = tl.program_id(0) * SOME
    count = tl.load(count_ptr)
    rows = start + tl.arange(0, SOME)
    in_rows, is_active = rows < num_rows, rows < count
    columns = tl.arange(0, WIDTH)
    in_width = (columns < width)[None, :]
    tokens = tl.load(order_ptr + rows, mask=in_rows, other=0)
    row_block = start // ROWS
    top = tl.full([SOME], float("-inf"), tl.float32)
    total = tl.zeros([SOME], tl.float32)
    mean = tl.zeros([SOME, WIDTH], tl.float32)
    if start < count:
        num_tiles = tl.cdiv(num_words, WORDS)
        per_program = tl.cdiv(tl.cdiv(count, ROWS).to(tl.int64) * num_tiles, programs)
        first_tile = row_block.to(tl.int64) * num_tiles
        first = (first_tile // per_program).to(tl.int32)
        last = ((first_tile + num_tiles - 1) // per_program).to(tl.int32)
        for program in range(first, last + 1):
            places = (program + row_block).to(tl.int64) * ROWS + rows - row_block * ROWS
            lse = tl.load(segment_lse_ptr + places)
            new_top = tl.maximum(top, lse)
            shrink, grow = tl.exp2(top - new_top), tl.exp2(lse - new_top)
            total = total * shrink + grow
            if WITH_MEAN:
                part = tl.load(
                    mean_ptr + places[:, None] * width + columns[None, :], mask=in_width, other=0.0
                )
                mean = mean * shrink[:, None] + part * grow[:, None]
            top = new_top
    total = tl.where(is_active, total, 1.0)
    targets = tl.load(targets_ptr + tokens, mask=is_active, other=-1)
    has_target = (targets >= 0) & is_active
    own = tl.load(
        weight_ptr + targets.to(tl.int64)[:, None] * width + columns[None, :],
        mask=has_target[:, None] & in_width,
        other=0.0,
    ).to(tl.float32)
    hidden = tl.load(
        hidden_ptr + rows.to(tl.int64)[:, None] * width + columns[None, :],
        mask=is_active[:, None] & in_width,
        other=0.0,
    ).to(tl.float32)
    lse = top + tl.log2(total)
    nll = lse * _LN_2 - tl.sum(hidden * own, 1)
    tl.store(nll_ptr + tokens, tl.where(is_active, nll, 0.0), mask=in_rows)
    tl.store(lse_ptr + tokens, tl.where(is_active, lse * _LN_2, 0.0), mask=in_rows)
    if WITH_MEAN:
        mean = mean / total[:, None]
        if IS_PART:
            whole_lse = tl.load(whole_lse_ptr + tokens, mask=is_active, other=0.0)
            mean *= tl.exp2(lse - whole_lse * _LOG2_E)[:, None]
        d_hidden = mean - own
        if WITH_GRAD:
            d_hidden *= tl.load(grad_ptr + tokens, mask=is_active, other=0.0)[:, None]
        tl.store(
            d_hidden_ptr + tokens[:, None] * width + columns[None, :],
            tl.where(is_active[:, None], d_hidden, 0.0).to(d_hidden_ptr.dtype.element_ty),
            mask=in_rows[:, None] & in_width,
        )


@triton.jit
def weight_gradient_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    targets_ptr,  # [N]
    lse_ptr,  # [N] float32
    grad_ptr,  # [N] float32, if WITH_GRAD
    d_weight_ptr,  # [V, E]
    count_ptr,  # [1]
    num_words,
    width,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    EXACT: tl.constexpr,
    WITH_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(softmax - onehot) * gradient, transposed, @ hidden, for one block of words."""
    words = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    columns = tl.arange(0, WIDTH)
    # Behind the end the last word comes again, so that no logit is out of bounds.
    real = tl.minimum(words, num_words - 1)
    weight = _load(weight_ptr, real, columns, num_words, width, False, EXACT)
    d_weight = tl.zeros([WORDS, WIDTH], tl.float32)
    count = tl.load(count_ptr)
    whole = count // ROWS
    for block in range(0, whole):
        # fmt: off
        d_weight = _absorb_rows(
            d_weight, weight, words, hidden_ptr, targets_ptr, lse_ptr, grad_ptr, block * ROWS,
            columns, count, width, ROWS, False, EXACT, WITH_GRAD, PRECISION,
        )
        # fmt: on
    if whole * ROWS < count:
        # fmt: off
        d_weight = _absorb_rows(
            d_weight, weight, words, hidden_ptr, targets_ptr, lse_ptr, grad_ptr, whole * ROWS,
            columns, count, width, ROWS, True, EXACT, WITH_GRAD, PRECISION,
        )
        # fmt: on
    tl.store(
        d_weight_ptr + words.to(tl.int64)[:, None] * width + columns[None, :],
        d_weight.to(d_weight_ptr.dtype.element_ty),
        mask=(words < num_words)[:, None] & (columns < width)[None, :],
    )


@triton.jit
def _absorb_rows(
    d_weight,
    weight,
    words,
    hidden_ptr,
    targets_ptr,
    lse_ptr,
    grad_ptr,
    start,
    columns,
    count,
    width,
    ROWS: tl.constexpr,
    BOUNDED: tl.constexpr,  # some of the rows may lie behind the count
    EXACT: tl.constexpr,
    WITH_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = start + tl.arange(0, ROWS)
    hidden = _load(hidden_ptr, rows, columns, count, width, BOUNDED, EXACT)
    # An infinite log-sum-exp silences a row. Words behind the end need no silence: what they get
    # is not stored.
    if BOUNDED:
        lse = tl.load(lse_ptr + rows, mask=rows < count, other=float("inf"))
        targets = tl.load(targets_ptr + rows, mask=rows < count, other=-1)
    else:
        lse = tl.load(lse_ptr + rows)
        targets = tl.load(targets_ptr + rows)
    # Rows down, words across: what belongs to a row is then the same throughout the loop for the
    # few rows that a thread has.
    logits = tl.dot(hidden, tl.trans(weight), input_precision=PRECISION)
    d_logits = tl.exp2(logits * _LOG2_E - (lse * _LOG2_E)[:, None])
    d_logits = tl.where(words[None, :] == targets[:, None], d_logits - 1.0, d_logits)
    if WITH_GRAD:
        if BOUNDED:
            grad = tl.load(grad_ptr + rows, mask=rows < count, other=0.0)
        else:
            grad = tl.load(grad_ptr + rows)
        d_logits *= grad[:, None]
    return tl.dot(tl.trans(d_logits.to(hidden.dtype)), hidden, d_weight, input_precision=PRECISION)


@triton.jit
def _share(program, programs, count, num_tiles, ROWS: tl.constexpr):
    """First tile of a program and the one after its last, of those of all active rows."""
    total = tl.cdiv(count, ROWS).to(tl.int64) * num_tiles
    per_program = tl.cdiv(total, programs)
    place = tl.minimum(program * per_program, total)
    return place, tl.minimum(place + per_program, total)


@triton.jit
def _load(ptr, rows, columns, num_rows, width, BOUNDED: tl.constexpr, EXACT: tl.constexpr):
    """Rows of a matrix, with zeros for what lies outside; unmasked where nothing can."""
    places = ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
    if BOUNDED and EXACT:
        return tl.load(places, mask=(rows < num_rows)[:, None], other=0.0)
    elif BOUNDED:
        mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
        return tl.load(places, mask=mask, other=0.0)
    elif EXACT:
        return tl.load(places)
    else:
        return tl.load(places, mask=(columns < width)[None, :], other=0.0)


MAX_WIDTH = 512


class _Blocks(NamedTuple):
    rows: int
    words: int
    warps: int
    stages: int


# Of a kernel up to a width: the fastest of eight or nine choices on an H200, with 3 to 24 % of the
# rows active and with all of them. Without the mean, as with it.
_BLOCKS = {
    "lse": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "mean": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "weight": {128: _Blocks(64, 128, 4, 3), 256: _Blocks(64, 64, 4, 2)},
}
# Programs for each of the device's processors.
_PROGRAMS = 2
_JOINED_ROWS = 16


def _meta(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Block sizes that keep a block of rows, a block of words and a sum in registers."""
    padded = max(16, triton.next_power_of_2(width))
    if dtype == torch.float32:
        blocks = _Blocks(32, 32, 4, 2) if padded <= 128 else _Blocks(16, 16, 8, 2)
    else:
        fitting = [found for widest, found in _BLOCKS[kernel].items() if padded <= widest]
        blocks = fitting[0] if fitting else _Blocks(32, 32, 8, 2)
    return {
        "ROWS": blocks.rows,
        "WORDS": blocks.words,
        "WIDTH": padded,
        "EXACT": padded == width,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # only float32 asks which
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # the interpreter, which runs them one after the other
    return _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


class _Active(NamedTuple):
    """Active rows, moved to the front; everything stays on the device."""

    order_N: Tensor
    number: Tensor
    hidden_NE: Tensor

    @classmethod
    def of(cls, hidden_NE: Tensor, active_N: Tensor) -> _Active:
        ahead_N = active_N.cumsum(0)
        count = active_N.sum(dtype=torch.int32).view(1)
        behind_N = count + (~active_N).cumsum(0)
        places_N = torch.where(active_N, ahead_N, behind_N) - 1
        order_N = torch.empty_like(places_N)
        order_N.scatter_(0, places_N, torch.arange(len(places_N), device=places_N.device))
        return cls(order_N, count, hidden_NE[order_N])


class _OfRows(NamedTuple):
    """In the order of the tokens, 0 where not active."""

    nll_N: Tensor
    lse_N: Tensor
    d_hidden_NE: Tensor
    """Empty unless asked for."""


def _of_rows(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    with_mean: bool,
    grad_N: Tensor | None = None,
    whole_lse_N: Tensor | None = None,
) -> _OfRows:
    """nll and log-sum-exp and, `with_mean`, the gradient of hidden, times that of nll if given.

    `whole_lse_N` is the log-sum-exp of a softmax of which these words are a part.
    """
    kernel = "mean" if with_mean else "lse"
    hidden_NE, device = active.hidden_NE, active.hidden_NE.device
    num_rows, width = hidden_NE.shape
    meta = _meta(kernel, width, hidden_NE.dtype)
    programs = _num_programs(device)
    # Going from segment to segment, the number of the program or that of the block of rows grows,
    # so that their sum tells all segments apart.
    num_segments = programs + triton.cdiv(num_rows, meta["ROWS"])
    lse_SR = torch.empty(num_segments, meta["ROWS"], device=device)
    mean_SRE = torch.empty(*lse_SR.shape, width if with_mean else 0, device=device)
    sizes = len(weight_VE), width
    rows_kernel[(programs,)](
        *(hidden_NE, weight_VE, active.number, lse_SR, mean_SRE, *sizes),
        WITH_MEAN=with_mean,
        **meta,
    )
    targets_N = targets_N.contiguous()
    nll_N = torch.empty(num_rows, device=device)
    lse_N = torch.empty_like(nll_N)
    d_hidden_NE = torch.empty_like(hidden_NE if with_mean else mean_SRE[0, :0])
    if num_rows:
        join_kernel[(triton.cdiv(num_rows, _JOINED_ROWS),)](
            *(lse_SR, mean_SRE, hidden_NE, weight_VE, active.order_N, active.number, targets_N),
            *(nll_N if grad_N is None else grad_N, nll_N if whole_lse_N is None else whole_lse_N),
            *(nll_N, lse_N, d_hidden_NE, num_rows, *sizes, programs),
            ROWS=meta["ROWS"],
            WORDS=meta["WORDS"],
            WIDTH=meta["WIDTH"],
            SOME=_JOINED_ROWS,
            WITH_MEAN=with_mean,
            WITH_GRAD=grad_N is not None,
            IS_PART=whole_lse_N is not None,
            num_warps=4,
        )
    return _OfRows(nll_N, lse_N, d_hidden_NE)


def _of_weights(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    lse_N: Tensor,
    grad_N: Tensor | None = None,
) -> Tensor:
    """The gradient of the weights; without `grad_N` that of the sum of all rows, not rounded."""
    hidden_NE, order_N = active.hidden_NE, active.order_N
    meta = _meta("weight", hidden_NE.shape[1], hidden_NE.dtype)
    dtype = torch.float32 if grad_N is None else weight_VE.dtype
    d_weight_VE = torch.empty_like(weight_VE, dtype=dtype)
    lse_N = lse_N[order_N]
    weight_gradient_kernel[(triton.cdiv(len(weight_VE), meta["WORDS"]),)](
        *(hidden_NE, weight_VE, targets_N[order_N], lse_N),
        lse_N if grad_N is None else grad_N[order_N],
        *(d_weight_VE, active.number, *weight_VE.shape),
        WITH_GRAD=grad_N is not None,
        **meta,
    )
    return d_weight_VE


def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """nll_N and the log-sum-exp of every row, both 0 where not active."""
    active = _Active.of(hidden_NE, active_N)
    rows = _of_rows(active, weight_VE.contiguous(), targets_N, with_mean=False)
    return rows.nll_N, rows.lse_N


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and weight; `lse_N` may be over more words than these."""
    active, weight_VE = _Active.of(hidden_NE, active_N), weight_VE.contiguous()
    grad_N, lse_N = grad_N.float().contiguous(), lse_N.contiguous()
    rows = _of_rows(active, weight_VE, targets_N, True, grad_N, lse_N)
    return rows.d_hidden_NE, _of_weights(active, weight_VE, targets_N, lse_N, grad_N)


def sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed nll of the active rows and its gradients by hidden and, not rounded, by weight."""
    active, weight_VE = _Active.of(hidden_NE, active_N), weight_VE.contiguous()
    rows = _of_rows(active, weight_VE, targets_N, with_mean=True)
    d_weight_VE = _of_weights(active, weight_VE, targets_N, rows.lse_N)
    return rows.nll_N.sum(), rows.d_hidden_NE, d_weight_VE


linear_nll: Nll = nll_operator("linear_nll_triton", forward, backward)
"""The same as `reference.linear_nll`, at a cost in proportion to the active rows."""
linear_nll_sum: Nll = nll_sum_operator("linear_nll_sum_triton", sum_and_gradients)
"""Its sum over all rows, with a gradient at the price of four products instead of five."""
