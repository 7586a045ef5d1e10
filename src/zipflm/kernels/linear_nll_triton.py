"""`linear_nll` for narrow bands on a GPU, with logits kept in registers.

The tiles (a block of rows by a block of words) of all active rows are distributed evenly over two
programs per multiprocessor. Results for the same rows are combined afterwards in a fixed order, so
that they are deterministic. The gradient of the weights has one program per block of words.

Shapes: N tokens (active ones first), E width, V words, S segments (the tiles of one block of rows
that are computed by one program), R rows of a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipflm.kernels.operators import Nll, nll_operator, nll_sum_operator

# Exponentials use base 2, which saves one instruction each.
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def rows_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    count_ptr,  # [1] number of active rows
    lse_ptr,  # [S, R] float32, base 2
    mean_ptr,  # [S, R, E] float32
    num_words,
    width,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    EXACT: tl.constexpr,  # WIDTH == width
    WITH_MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the log-sum-exp of each row and, if WITH_MEAN, the softmax-weighted mean of the word
    vectors, over this program's tiles."""
    program = tl.program_id(0)
    count = tl.load(count_ptr)
    num_tiles = tl.cdiv(num_words, WORDS)
    position, end = _tile_range(program, tl.num_programs(0), count, num_tiles, ROWS)
    columns = tl.arange(0, WIDTH)
    while position < end:
        row_block = (position // num_tiles).to(tl.int32)
        first = (position % num_tiles).to(tl.int32)
        last = tl.minimum(num_tiles, first + end - position).to(tl.int32)
        rows = row_block * ROWS + tl.arange(0, ROWS)
        hidden = _load(hidden_ptr, rows, columns, count, width, True, EXACT)
        # Online softmax: `top` is the largest logit so far, `total` the sum of exponentials.
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mean = tl.zeros([ROWS, WIDTH], tl.float32)
        full = tl.minimum(last, num_words // WORDS)  # end of the tiles without padding
        for tile in range(first, full):
            # fmt: off
            top, total, mean = _absorb_words(
                top, total, mean, hidden, weight_ptr, tile * WORDS, columns, num_words, width,
                WORDS, False, EXACT, WITH_MEAN, PRECISION,
            )
            # fmt: on
        if last > full:
            # fmt: off
            top, total, mean = _absorb_words(
                top, total, mean, hidden, weight_ptr, full * WORDS, columns, num_words, width,
                WORDS, True, EXACT, WITH_MEAN, PRECISION,
            )
            # fmt: on
        offsets = (program + row_block).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        tl.store(lse_ptr + offsets, top + tl.log2(total))
        if WITH_MEAN:
            tl.store(
                mean_ptr + offsets[:, None] * width + columns[None, :],
                mean / total[:, None],
                mask=(columns < width)[None, :],
            )
        position += last - first


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
    BOUNDED: tl.constexpr,  # words may be out of range
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
def combine_kernel(
    segment_lse_ptr,  # [S, R] float32, base 2
    mean_ptr,  # [S, R, E] float32
    hidden_ptr,  # [N, E], active rows first
    weight_ptr,  # [V, E]
    order_ptr,  # [N] token of each row; the arrays below are in token order
    count_ptr,  # [1]
    targets_ptr,  # [N]; -1 for a word of another shard
    grad_ptr,  # [N] gradient of nll, if WITH_GRAD
    full_lse_ptr,  # [N] over the words of all shards, if IS_SHARD
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
    BLOCK: tl.constexpr,
    WITH_MEAN: tl.constexpr,
    WITH_GRAD: tl.constexpr,
    IS_SHARD: tl.constexpr,
):
    """Combine the results of `rows_kernel` for a block of rows. Inactive rows get zeros."""
    start = tl.program_id(0) * BLOCK
    count = tl.load(count_ptr)
    rows = start + tl.arange(0, BLOCK)
    in_rows, is_active = rows < num_rows, rows < count
    columns = tl.arange(0, WIDTH)
    in_width = (columns < width)[None, :]
    tokens = tl.load(order_ptr + rows, mask=in_rows, other=0)
    row_block = start // ROWS
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    mean = tl.zeros([BLOCK, WIDTH], tl.float32)
    if start < count:
        num_tiles = tl.cdiv(num_words, WORDS)
        per_program = tl.cdiv(tl.cdiv(count, ROWS).to(tl.int64) * num_tiles, programs)
        first_tile = row_block.to(tl.int64) * num_tiles
        first = (first_tile // per_program).to(tl.int32)
        last = ((first_tile + num_tiles - 1) // per_program).to(tl.int32)
        for program in range(first, last + 1):
            offsets = (program + row_block).to(tl.int64) * ROWS + rows - row_block * ROWS
            lse = tl.load(segment_lse_ptr + offsets)
            new_top = tl.maximum(top, lse)
            shrink, grow = tl.exp2(top - new_top), tl.exp2(lse - new_top)
            total = total * shrink + grow
            if WITH_MEAN:
                segment_mean = tl.load(
                    mean_ptr + offsets[:, None] * width + columns[None, :], mask=in_width, other=0.0
                )
                mean = mean * shrink[:, None] + segment_mean * grow[:, None]
            top = new_top
    total = tl.where(is_active, total, 1.0)
    targets = tl.load(targets_ptr + tokens, mask=is_active, other=-1)
    has_target = (targets >= 0) & is_active
    target_weight = tl.load(
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
    nll = lse * _LN_2 - tl.sum(hidden * target_weight, 1)
    tl.store(nll_ptr + tokens, tl.where(is_active, nll, 0.0), mask=in_rows)
    tl.store(lse_ptr + tokens, tl.where(is_active, lse * _LN_2, 0.0), mask=in_rows)
    if WITH_MEAN:
        mean = mean / total[:, None]
        if IS_SHARD:
            full_lse = tl.load(full_lse_ptr + tokens, mask=is_active, other=0.0)
            mean *= tl.exp2(lse - full_lse * _LOG2_E)[:, None]
        d_hidden = mean - target_weight
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
    """Compute ((softmax - onehot) * gradient).T @ hidden for one block of words."""
    words = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    columns = tl.arange(0, WIDTH)
    # Out-of-range words load the last word's row.
    clamped = tl.minimum(words, num_words - 1)
    weight = _load(weight_ptr, clamped, columns, num_words, width, False, EXACT)
    d_weight = tl.zeros([WORDS, WIDTH], tl.float32)
    count = tl.load(count_ptr)
    num_full = count // ROWS
    for block in range(0, num_full):
        # fmt: off
        d_weight = _absorb_rows(
            d_weight, weight, words, hidden_ptr, targets_ptr, lse_ptr, grad_ptr, block * ROWS,
            columns, count, width, ROWS, False, EXACT, WITH_GRAD, PRECISION,
        )
        # fmt: on
    if num_full * ROWS < count:
        # fmt: off
        d_weight = _absorb_rows(
            d_weight, weight, words, hidden_ptr, targets_ptr, lse_ptr, grad_ptr, num_full * ROWS,
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
    BOUNDED: tl.constexpr,  # rows may be out of range
    EXACT: tl.constexpr,
    WITH_GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = start + tl.arange(0, ROWS)
    hidden = _load(hidden_ptr, rows, columns, count, width, BOUNDED, EXACT)
    # An infinite log-sum-exp makes the softmax of an out-of-range row 0. The results of
    # out-of-range words are not stored.
    if BOUNDED:
        lse = tl.load(lse_ptr + rows, mask=rows < count, other=float("inf"))
        targets = tl.load(targets_ptr + rows, mask=rows < count, other=-1)
    else:
        lse = tl.load(lse_ptr + rows)
        targets = tl.load(targets_ptr + rows)
    # With rows as the first dimension, each thread holds few rows, and so few values of lse,
    # targets and grad.
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
def _tile_range(program, programs, count, num_tiles, ROWS: tl.constexpr):
    """Return the start and end of a program's tiles, counted over all active rows."""
    total = tl.cdiv(count, ROWS).to(tl.int64) * num_tiles
    per_program = tl.cdiv(total, programs)
    start = tl.minimum(program * per_program, total)
    return start, tl.minimum(start + per_program, total)


@triton.jit
def _load(ptr, rows, columns, num_rows, width, BOUNDED: tl.constexpr, EXACT: tl.constexpr):
    """Load rows of a matrix, with zeros where out of range."""
    pointers = ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
    if BOUNDED and EXACT:
        return tl.load(pointers, mask=(rows < num_rows)[:, None], other=0.0)
    elif BOUNDED:
        mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
        return tl.load(pointers, mask=mask, other=0.0)
    elif EXACT:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(columns < width)[None, :], other=0.0)


MAX_WIDTH = 512
"""Maximum width of the hidden vectors."""


class _Blocks(NamedTuple):
    rows: int
    words: int
    warps: int
    stages: int


# Block sizes by kernel and maximum width: the fastest of 8-9 candidates on an H200, measured with
# 3-24% and 100% of rows active.
_BLOCKS = {
    "lse": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "mean": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "weight": {128: _Blocks(64, 128, 4, 3), 256: _Blocks(64, 64, 4, 2)},
}
_PROGRAMS_PER_MULTIPROCESSOR = 2
_COMBINED_ROWS = 16  # rows per program of `combine_kernel`


def _meta(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Choose block sizes so that a tile of rows, a tile of words and the accumulator fit in
    registers."""
    padded = max(16, triton.next_power_of_2(width))
    if dtype == torch.float32:
        blocks = _Blocks(32, 32, 4, 2) if padded <= 128 else _Blocks(16, 16, 8, 2)
    else:
        fitting = [sizes for max_width, sizes in _BLOCKS[kernel].items() if padded <= max_width]
        blocks = fitting[0] if fitting else _Blocks(32, 32, 8, 2)
    return {
        "ROWS": blocks.rows,
        "WORDS": blocks.words,
        "WIDTH": padded,
        "EXACT": padded == width,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # only used for float32
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # the interpreter
    return (
        _PROGRAMS_PER_MULTIPROCESSOR
        * torch.cuda.get_device_properties(device).multi_processor_count
    )


class _Active(NamedTuple):
    """Rows reordered so that active ones come first, without a host synchronization."""

    order_N: Tensor
    num_active: Tensor
    """Number of active rows, [1]."""
    hidden_NE: Tensor

    @classmethod
    def from_mask(cls, hidden_NE: Tensor, active_N: Tensor) -> _Active:
        active_rank_N = active_N.cumsum(0)
        count = active_N.sum(dtype=torch.int32).view(1)
        inactive_rank_N = count + (~active_N).cumsum(0)
        positions_N = torch.where(active_N, active_rank_N, inactive_rank_N) - 1
        order_N = torch.empty_like(positions_N)
        order_N.scatter_(0, positions_N, torch.arange(len(positions_N), device=positions_N.device))
        return cls(order_N, count, hidden_NE[order_N])


def _run_rows(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    with_mean: bool,
    grad_N: Tensor | None = None,
    full_lse_N: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nll, log-sum-exp and, if `with_mean`, the gradient of hidden (times `grad_N`).

    All are in token order, and 0 for inactive rows. `full_lse_N` is the log-sum-exp over the words
    of all shards of a sharded softmax.
    """
    kernel = "mean" if with_mean else "lse"
    hidden_NE, device = active.hidden_NE, active.hidden_NE.device
    num_rows, width = hidden_NE.shape
    meta = _meta(kernel, width, hidden_NE.dtype)
    programs = _num_programs(device)
    # From one segment to the next, the program, the block of rows, or both increase, so their sum
    # is a unique index.
    num_segments = programs + triton.cdiv(num_rows, meta["ROWS"])
    lse_SR = torch.empty(num_segments, meta["ROWS"], dtype=torch.float32, device=device)
    mean_SRE = lse_SR.new_empty(*lse_SR.shape, width if with_mean else 0)
    sizes = len(weight_VE), width
    rows_kernel[(programs,)](
        *(hidden_NE, weight_VE, active.num_active, lse_SR, mean_SRE, *sizes),
        WITH_MEAN=with_mean,
        **meta,
    )
    targets_N = targets_N.contiguous()
    nll_N = torch.empty(num_rows, dtype=torch.float32, device=device)
    lse_N = torch.empty_like(nll_N)
    d_hidden_NE = torch.empty_like(hidden_NE if with_mean else mean_SRE[0, :0])
    if num_rows:
        combine_kernel[(triton.cdiv(num_rows, _COMBINED_ROWS),)](
            *(lse_SR, mean_SRE, hidden_NE, weight_VE, active.order_N, active.num_active, targets_N),
            *(nll_N if grad_N is None else grad_N, nll_N if full_lse_N is None else full_lse_N),
            *(nll_N, lse_N, d_hidden_NE, num_rows, *sizes, programs),
            ROWS=meta["ROWS"],
            WORDS=meta["WORDS"],
            WIDTH=meta["WIDTH"],
            BLOCK=_COMBINED_ROWS,
            WITH_MEAN=with_mean,
            WITH_GRAD=grad_N is not None,
            IS_SHARD=full_lse_N is not None,
            num_warps=4,
        )
    return nll_N, lse_N, d_hidden_NE


def _weight_gradient(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    lse_N: Tensor,
    grad_N: Tensor | None = None,
) -> Tensor:
    """Compute the gradient of the weights; without `grad_N`, that of the summed nll in float32."""
    hidden_NE, order_N = active.hidden_NE, active.order_N
    meta = _meta("weight", hidden_NE.shape[1], hidden_NE.dtype)
    dtype = torch.float32 if grad_N is None else weight_VE.dtype
    d_weight_VE = torch.empty_like(weight_VE, dtype=dtype)
    lse_N = lse_N[order_N]
    weight_gradient_kernel[(triton.cdiv(len(weight_VE), meta["WORDS"]),)](
        *(hidden_NE, weight_VE, targets_N[order_N], lse_N),
        lse_N if grad_N is None else grad_N[order_N],
        *(d_weight_VE, active.num_active, *weight_VE.shape),
        WITH_GRAD=grad_N is not None,
        **meta,
    )
    return d_weight_VE


def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return nll_N and the log-sum-exp of every row, both 0 for inactive rows."""
    active = _Active.from_mask(hidden_NE, active_N)
    nll_N, lse_N, _ = _run_rows(active, weight_VE.contiguous(), targets_N, with_mean=False)
    return nll_N, lse_N


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of hidden and weight. `lse_N` may cover more words than `weight_VE`."""
    active, weight_VE = _Active.from_mask(hidden_NE, active_N), weight_VE.contiguous()
    grad_N, lse_N = grad_N.float().contiguous(), lse_N.contiguous()
    _, _, d_hidden_NE = _run_rows(active, weight_VE, targets_N, True, grad_N, lse_N)
    return d_hidden_NE, _weight_gradient(active, weight_VE, targets_N, lse_N, grad_N)


def sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed nll of the active rows, and the gradients of hidden and weight, the latter
    in float32."""
    active, weight_VE = _Active.from_mask(hidden_NE, active_N), weight_VE.contiguous()
    nll_N, lse_N, d_hidden_NE = _run_rows(active, weight_VE, targets_N, with_mean=True)
    d_weight_VE = _weight_gradient(active, weight_VE, targets_N, lse_N)
    return nll_N.sum(), d_hidden_NE, d_weight_VE


linear_nll: Nll = nll_operator("linear_nll_triton", forward, backward)
"""Equivalent to `reference.linear_nll`, with cost proportional to the number of active rows."""
linear_nll_sum: Nll = nll_sum_operator("linear_nll_sum_triton", sum_and_gradients)
"""The sum of `linear_nll` over all rows. Loss and gradients need four matrix products instead of
five."""
