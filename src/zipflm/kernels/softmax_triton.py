"""Triton kernels for `linear_nll_chunked`: log-sum-exps and gradients, each in one pass over the
logits, sums of rows by target, and matrix products that store exponentials instead of logits.

Shapes: N tokens, R rows of a chunk, E width, V words.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_BLOCK = 4096


@triton.jit
def _lse_kernel(logits_ptr, lse_ptr, num_words, stride, BLOCK: tl.constexpr):
    """Compute the log-sum-exp of a row of float32 logits [R, stride] over its first `num_words`
    columns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    # A running maximum per lane; lanes are combined at the end.
    for start in range(0, num_words, BLOCK):
        words = start + columns
        logits = tl.load(
            logits_ptr + row * stride + words, mask=words < num_words, other=float("-inf")
        )
        new_top = tl.maximum(top, logits)
        # A lane without words has a maximum of -inf, and -inf - (-inf) is NaN.
        base = tl.where(new_top > float("-inf"), new_top, 0.0)
        total = total * tl.exp(top - base) + tl.exp(logits - base)
        top = new_top
    highest = tl.max(top, 0)
    tl.store(lse_ptr + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), 0)))


@triton.jit
def _gradient_kernel(
    logits_ptr, lse_ptr, targets_ptr, grad_ptr, out_ptr, num_words, stride, BLOCK: tl.constexpr
):
    """Store (softmax - onehot) * grad of a row, 0 in the padding: [R, stride], dtype of `out`."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lse, grad = tl.load(lse_ptr + row), tl.load(grad_ptr + row)
    target = tl.load(targets_ptr + row)
    is_word = words < num_words
    # Padding is not read: with a low log-sum-exp its exponential would overflow.
    logits = tl.load(logits_ptr + row * stride + words, mask=is_word, other=float("-inf"))
    d_logits = tl.where(is_word, (tl.exp(logits - lse) - (words == target)) * grad, 0.0)
    out = d_logits.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride + words, out, mask=words < stride)


def row_lse(logits_RV: Tensor, num_words: int) -> Tensor:
    """Return the logsumexp over the first `num_words` float32 logits of each row."""
    rows, stride = logits_RV.shape
    lse_R = torch.empty(rows, dtype=torch.float32, device=logits_RV.device)
    _lse_kernel[(rows,)](logits_RV, lse_R, num_words, stride, BLOCK=_BLOCK, num_warps=8)
    return lse_R


def row_gradient(
    logits_RV: Tensor,
    num_words: int,
    lse_R: Tensor,
    targets_R: Tensor,
    grad_R: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of the logits, (softmax - onehot) * grad; 0 in the padding."""
    rows, stride = logits_RV.shape
    out_RV = torch.empty_like(logits_RV, dtype=dtype)
    per_row = lse_R.contiguous(), targets_R.contiguous(), grad_R.float().contiguous()
    _gradient_kernel[(rows, triton.cdiv(stride, _BLOCK))](
        logits_RV, *per_row, out_RV, num_words, stride, BLOCK=_BLOCK, num_warps=8
    )
    return out_RV


# Rows sorted by target are split into pieces of _PIECE rows. Programs read _ROWS rows at a time.
_PIECE, _ROWS, _COLUMNS = 128, 16, 256


@triton.jit
def _targets_kernel(
    hidden_ptr,  # [N, E]
    miss_ptr,
    targets_ptr,  # [N], ascending
    order_ptr,  # [N], row of each target
    d_weight_ptr,  # [V, E] float32
    pieces_ptr,  # [pieces, 2, E] float32
    num_rows,
    width,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Subtract miss * hidden from d_weight of a target whose rows are all in one piece.

    The program of a target's first row sums over all its rows, so there is one writer and a fixed
    order. For other targets the sum over a piece is stored: [:, 1] if the target starts in this
    piece, [:, 0] if it continues from the previous piece.
    """
    first = tl.program_id(0)
    target = tl.load(targets_ptr + first)
    starts = tl.load(targets_ptr + first - 1, mask=first > 0, other=-1) != target
    if starts | (first % PIECE == 0):
        piece = first // PIECE
        end = tl.minimum((piece + 1) * PIECE, num_rows)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < width
        total = tl.zeros([COLUMNS], tl.float32)
        start = first
        more = 1
        while more > 0:
            positions = start + tl.arange(0, ROWS)
            is_mine = tl.load(targets_ptr + positions, mask=positions < end, other=-1) == target
            rows = tl.load(order_ptr + positions, mask=is_mine, other=0).to(tl.int64)
            miss = tl.load(miss_ptr + rows, mask=is_mine, other=0.0)
            hidden = tl.load(
                hidden_ptr + rows[:, None] * width + columns[None, :],
                mask=is_mine[:, None] & is_column[None, :],
                other=0.0,
            )
            total += tl.sum(miss[:, None] * hidden.to(tl.float32), 0)
            start += ROWS
            more = tl.min(is_mine.to(tl.int32), 0)
        continues = tl.load(targets_ptr + end, mask=end < num_rows, other=-1) == target
        if starts & (continues == 0):
            d_weight = d_weight_ptr + target.to(tl.int64) * width + columns
            tl.store(d_weight, tl.load(d_weight, mask=is_column, other=0.0) - total, mask=is_column)
        else:
            slot = 2 * piece + starts.to(tl.int32)
            tl.store(pieces_ptr + slot.to(tl.int64) * width + columns, total, mask=is_column)


@triton.jit
def _pieces_kernel(
    targets_ptr,
    d_weight_ptr,
    pieces_ptr,
    num_rows,
    num_pieces,
    width,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """For the target that starts in this piece and continues in the next, subtract the sums over
    all its pieces from d_weight."""
    piece = tl.program_id(0)
    first, end = piece * PIECE, tl.minimum((piece + 1) * PIECE, num_rows)
    target = tl.load(targets_ptr + end - 1)
    starts = tl.load(targets_ptr + first - 1, mask=first > 0, other=-1) != target
    continues = tl.load(targets_ptr + end, mask=end < num_rows, other=-1) == target
    if starts & continues:
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < width
        slot = (2 * piece + 1).to(tl.int64)
        total = tl.load(pieces_ptr + slot * width + columns, mask=is_column, other=0.0)
        start = piece + 1
        more = 1
        while more > 0:
            others = start + tl.arange(0, ROWS)
            firsts = tl.load(targets_ptr + others * PIECE, mask=others < num_pieces, other=-1)
            is_mine = firsts == target
            sums = tl.load(
                pieces_ptr + (2 * others).to(tl.int64)[:, None] * width + columns[None, :],
                mask=is_mine[:, None] & is_column[None, :],
                other=0.0,
            )
            total += tl.sum(sums, 0)
            start += ROWS
            more = tl.min(is_mine.to(tl.int32), 0)
        d_weight = d_weight_ptr + target.to(tl.int64) * width + columns
        tl.store(d_weight, tl.load(d_weight, mask=is_column, other=0.0) - total, mask=is_column)


def subtract_targets(
    d_weight_VE: Tensor, hidden_NE: Tensor, miss_N: Tensor, targets_N: Tensor
) -> None:
    """Subtract miss * hidden of every row from its target's gradient, in float32."""
    targets_N, order_N = targets_N.sort(stable=True)
    rows, width = hidden_NE.shape
    num_pieces, columns = triton.cdiv(rows, _PIECE), triton.cdiv(width, _COLUMNS)
    pieces = torch.empty(num_pieces, 2, width, dtype=torch.float32, device=hidden_NE.device)
    blocks: Any = {"PIECE": _PIECE, "ROWS": _ROWS, "COLUMNS": _COLUMNS}
    _targets_kernel[(rows, columns)](
        hidden_NE.contiguous(),
        miss_N,
        targets_N,
        order_N,
        d_weight_VE,
        pieces,
        rows,
        width,
        **blocks,
    )
    _pieces_kernel[(num_pieces, columns)](
        targets_N, d_weight_VE, pieces, rows, num_pieces, width, **blocks
    )


_MAX_OTHERS = tl.constexpr(1e30)
"""`others` is the sum of exp(logit - target's logit) over all words but the target. Up to this
value, its products with weights and hidden values do not overflow float32."""


@triton.jit
def _target_logits_kernel(hidden_ptr, weight_ptr, targets_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """Compute h_r . w_t of a row r and its target t."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    hidden = tl.load(hidden_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + target * width + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(hidden * weight, 0))


@triton.jit
def _exps_kernel(
    hidden,  # [R, E], tiles of ROWS x DEPTH
    weight,  # [V, E], tiles of WORDS x DEPTH
    out,  # [R, V], tiles of ROWS x WORDS
    base_ptr,  # [R] float32
    targets_ptr,  # [R]
    sums_ptr,  # [tiles of words, R] float32
    num_rows,
    num_words,
    num_tiles,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    DEPTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Store exp(logit - base) of all words, 0 for the target and padding, and sums over each tile.

    Tiles are assigned to programs round-robin, all rows of a block of words before the next block,
    so that weights are read once and hidden vectors stay in the cache. The flattened loop overlaps
    the store of one tile with the computation of the next.
    """
    row_tiles = tl.cdiv(num_rows, ROWS)
    for tile in tl.range(tl.program_id(0), num_tiles, PROGRAMS, flatten=True):
        row_tile, word_tile = tile % row_tiles, tile // row_tiles
        logits = tl.zeros([ROWS, WORDS], tl.float32)
        for depth in range(0, WIDTH, DEPTH):
            hidden_tile = hidden.load([row_tile * ROWS, depth])
            weight_tile = weight.load([word_tile * WORDS, depth])
            logits = tl.dot(hidden_tile, weight_tile.T, logits)
        rows = row_tile * ROWS + tl.arange(0, ROWS)
        words = word_tile * WORDS + tl.arange(0, WORDS)
        is_row = rows < num_rows
        base = tl.load(base_ptr + rows, mask=is_row, other=0.0)
        target = tl.load(targets_ptr + rows, mask=is_row, other=0)
        is_other = (words[None, :] < num_words) & (words[None, :] != target[:, None])
        exps = tl.where(is_other, tl.exp(logits - base[:, None]), 0.0)
        sums = sums_ptr + word_tile.to(tl.int64) * num_rows + rows
        tl.store(sums, tl.sum(exps, 1), mask=is_row)
        out.store([row_tile * ROWS, word_tile * WORDS], exps.to(out.dtype))


@triton.jit
def _row_logits(
    hidden_ptr, weight_ptr, row, words, num_words, width, WORDS: tl.constexpr, DEPTH: tl.constexpr
):
    """Compute the logits of a block of words for one row, -inf in the padding."""
    logits = tl.zeros([WORDS], tl.float32)
    for depth in range(0, width, DEPTH):
        columns = depth + tl.arange(0, DEPTH)
        hidden = tl.load(hidden_ptr + row * width + columns, mask=columns < width, other=0.0)
        mask = (words[:, None] < num_words) & (columns[None, :] < width)
        offsets = words[:, None].to(tl.int64) * width + columns[None, :]
        weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0)
        logits += tl.sum(weight.to(tl.float32) * hidden.to(tl.float32)[None, :], 1)
    return tl.where(words < num_words, logits, float("-inf"))


@triton.jit
def _finish_kernel(
    hidden_ptr,
    weight_ptr,
    targets_ptr,
    active_ptr,
    base_ptr,
    others_ptr,
    out_ptr,  # [R, stride]
    nll_ptr,
    scale_ptr,
    miss_ptr,
    num_words,
    width,
    stride,
    WORDS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute nll, scale and miss, which is 1 - p(target), of a row; all 0 if it is inactive.

    If other words are far more likely than the target, the row's exponentials are recomputed
    relative to its log-sum-exp.
    """
    row = tl.program_id(0).to(tl.int64)
    base = tl.load(base_ptr + row)
    # base - base is NaN for an infinite target logit, and makes its nll NaN.
    others = tl.load(others_ptr + row) + (base - base)
    target = tl.load(targets_ptr + row)
    is_active = tl.load(active_ptr + row) != 0
    nll = tl.log(1.0 + others)
    scale = 1.0 / (1.0 + others)
    miss = others * scale
    if others > _MAX_OTHERS:
        top = tl.full([WORDS], float("-inf"), tl.float32)
        total = tl.zeros([WORDS], tl.float32)
        for start in range(0, num_words, WORDS):
            words = start + tl.arange(0, WORDS)
            logits = _row_logits(hidden_ptr, weight_ptr, row, words, num_words, width, WORDS, DEPTH)
            new_top = tl.maximum(top, logits)
            # A lane without words has a maximum of -inf, and -inf - (-inf) is NaN.
            safe_top = tl.where(new_top > float("-inf"), new_top, 0.0)
            total = total * tl.exp(top - safe_top) + tl.exp(logits - safe_top)
            top = new_top
        highest = tl.max(top, 0)
        lse = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
        for start in range(0, num_words, WORDS):
            words = start + tl.arange(0, WORDS)
            logits = _row_logits(hidden_ptr, weight_ptr, row, words, num_words, width, WORDS, DEPTH)
            exps = tl.exp(logits - lse).to(out_ptr.dtype.element_ty)
            mask = (words < num_words) & (words != target)
            tl.store(out_ptr + row * stride + words, exps, mask=mask)
        nll = lse - base
        scale = 1.0
        miss = 1.0 - tl.exp(-nll)
    tl.store(miss_ptr + row, tl.where(is_active, miss, 0.0))
    tl.store(nll_ptr + row, tl.where(is_active, nll, 0.0))
    tl.store(scale_ptr + row, tl.where(is_active, scale, 0.0))


@triton.jit
def _hidden_kernel(
    unscaled_ptr,  # [R, E] float32
    scale_ptr,
    miss_ptr,
    weight_ptr,
    targets_ptr,
    out_ptr,  # [R, E]
    width,
    BLOCK: tl.constexpr,
):
    """Store the gradient of a hidden vector, unscaled * scale - miss * w_t, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    unscaled = tl.load(unscaled_ptr + row * width + columns, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + target * width + columns, mask=mask, other=0.0).to(tl.float32)
    out = unscaled * tl.load(scale_ptr + row) - tl.load(miss_ptr + row) * weight
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


class _Tiles(NamedTuple):
    rows: int
    words: int
    warps: int


_DEPTH = 64
_STAGES = 3
# By minimum shared memory per program in bytes. The first is the fastest of ten candidates on an
# H200; the second fits smaller GPUs and has not been timed.
_TILES = {220_000: _Tiles(128, 256, 8), 0: _Tiles(64, 128, 4)}


@cache
def _tiles_and_programs(device: torch.device) -> tuple[_Tiles, int]:
    if device.type != "cuda":  # the interpreter
        return _Tiles(16, 32, 4), 2
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", 0)
    tiles = next(tiles for minimum, tiles in _TILES.items() if shared_memory >= minimum)
    return tiles, properties.multi_processor_count


class Exps(NamedTuple):
    """The softmax of a chunk of rows. The gradient of nll_R with respect to the logits is -miss_R
    at the targets and exps_RV * scale_R elsewhere. nll, scale and miss are 0 for inactive rows."""

    nll_R: Tensor
    exps_RV: Tensor
    """0 at the target and in the padding."""
    scale_R: Tensor
    miss_R: Tensor
    """1 - p(target)."""


def row_exps(
    hidden_RE: Tensor, weight_VE: Tensor, num_words: int, targets_R: Tensor, active_R: Tensor
) -> Exps:
    """Compute the softmax of a chunk of rows. Weights may be padded with rows of zeros."""
    (rows, width), padded_words, device = hidden_RE.shape, len(weight_VE), hidden_RE.device
    hidden_RE, weight_VE = hidden_RE.contiguous(), weight_VE.contiguous()
    targets_R = targets_R.contiguous()
    tiles, programs = _tiles_and_programs(device)
    word_tiles = triton.cdiv(padded_words, tiles.words)
    per_row = torch.empty(4, rows, dtype=torch.float32, device=device)
    base_R, nll_R, scale_R, miss_R = per_row
    sums = torch.empty(word_tiles, rows, dtype=torch.float32, device=device)
    exps_RV = torch.empty(rows, padded_words, dtype=hidden_RE.dtype, device=device)
    _target_logits_kernel[(rows,)](
        hidden_RE, weight_VE, targets_R, base_R, width, BLOCK=triton.next_power_of_2(width)
    )
    _exps_kernel[(programs,)](
        _in_tiles(hidden_RE, tiles.rows, _DEPTH),
        _in_tiles(weight_VE, tiles.words, _DEPTH),
        _in_tiles(exps_RV, tiles.rows, tiles.words),
        base_R,
        targets_R,
        sums,
        rows,
        num_words,
        triton.cdiv(rows, tiles.rows) * word_tiles,
        WIDTH=width,
        ROWS=tiles.rows,
        WORDS=tiles.words,
        DEPTH=_DEPTH,
        PROGRAMS=programs,
        num_warps=tiles.warps,
        num_stages=_STAGES,
    )
    _finish_kernel[(rows,)](
        hidden_RE,
        weight_VE,
        targets_R,
        active_R.contiguous(),
        base_R,
        sums.sum(0),
        exps_RV,
        nll_R,
        scale_R,
        miss_R,
        num_words,
        width,
        padded_words,
        WORDS=32,
        DEPTH=64,
        num_warps=4,
    )
    return Exps(nll_R, exps_RV, scale_R, miss_R)


def hidden_gradient(
    unscaled_RE: Tensor, exps: Exps, weight_VE: Tensor, targets_R: Tensor, out_RE: Tensor
) -> None:
    """Store the gradient of the hidden vectors in `out_RE`. `unscaled_RE` is exps_RV @ weight_VE in
    float32."""
    rows, width = unscaled_RE.shape
    _hidden_kernel[(rows,)](
        unscaled_RE,
        exps.scale_R,
        exps.miss_R,
        weight_VE,
        targets_R.contiguous(),
        out_RE,
        width,
        BLOCK=triton.next_power_of_2(width),
    )


def _in_tiles(matrix: Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor.from_tensor(matrix, [rows, columns])
