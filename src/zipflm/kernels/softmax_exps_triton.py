"""A softmax's gradient as the product that makes the logits leaves it: for `linear_nll_chunked`.

Logits of many words are large, and each pass over them takes half as long as a product. The
gradient of row r by logit v is exp(l_v - lse) - (v == t), and it is wanted only inside products
along r and v. So what depends on the row alone may be multiplied in afterwards:

    exp(l_v - lse) = exp(l_v - l_t) * scale,    scale = 1 / (1 + others),
    others = sum of exp(l_v - l_t) over all words but the target,    nll = log(1 + others).

Exponentials relative to the target's logit, which is one short product a row, can be written where
the logits would have been; the log-sum-exp need not be known. bfloat16 has room for them up to 69
nats; beyond, a row is computed once more, slowly.

The target's own entry, p_t - 1 = -others * scale, is the largest of its row. It has no place there,
where it would be rounded: its part of both gradients is added in float32, here to that of hidden
vectors, by `target_rows_triton` to that of weights.

Shapes: R rows, E width, V words.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_MOST = tl.constexpr(1e30)
"""Of `others`: its products with weights and hidden values are in the range of float32."""


@triton.jit
def _target_logits_kernel(hidden_ptr, weight_ptr, targets_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """h_r . w_t of each row r and its target t."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row).to(tl.int64)
    places = tl.arange(0, BLOCK)
    mask = places < width
    hidden = tl.load(hidden_ptr + row * width + places, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + target * width + places, mask=mask, other=0.0).to(tl.float32)
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
    """exp(logit - base) of all words but the target, which has 0, as have columns behind the words;
    and their sums over each tile.

    Programs take tiles in turn, all rows of some words before the next words: weights are read
    once, hidden vectors stay in the cache. Flattened, one tile is stored while the next begins.
    """
    row_tiles = tl.cdiv(num_rows, ROWS)
    for tile in tl.range(tl.program_id(0), num_tiles, PROGRAMS, flatten=True):
        row_tile, word_tile = tile % row_tiles, tile // row_tiles
        logits = tl.zeros([ROWS, WORDS], tl.float32)
        for depth in range(0, WIDTH, DEPTH):
            some_hidden = hidden.load([row_tile * ROWS, depth])
            some_weight = weight.load([word_tile * WORDS, depth])
            logits = tl.dot(some_hidden, some_weight.T, logits)
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
    """Logits of some words in one row, -inf behind the words."""
    logits = tl.zeros([WORDS], tl.float32)
    for depth in range(0, width, DEPTH):
        places = depth + tl.arange(0, DEPTH)
        hidden = tl.load(hidden_ptr + row * width + places, mask=places < width, other=0.0)
        mask = (words[:, None] < num_words) & (places[None, :] < width)
        at = words[:, None].to(tl.int64) * width + places[None, :]
        weight = tl.load(weight_ptr + at, mask=mask, other=0.0)
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
    """nll, scale and miss, which is 1 - p_t, of a row; 0 where not active.

    A row with words far more likely than its target is written anew, relative to its log-sum-exp.
    """
    row = tl.program_id(0).to(tl.int64)
    base = tl.load(base_ptr + row)
    # Beside an infinite logit of the target all others are nothing: that is no number either.
    others = tl.load(others_ptr + row) + (base - base)
    target = tl.load(targets_ptr + row)
    is_active = tl.load(active_ptr + row) != 0
    nll = tl.log(1.0 + others)
    scale = 1.0 / (1.0 + others)
    miss = others * scale
    if others > _MOST:
        top = tl.full([WORDS], float("-inf"), tl.float32)
        total = tl.zeros([WORDS], tl.float32)
        for start in range(0, num_words, WORDS):
            words = start + tl.arange(0, WORDS)
            logits = _row_logits(hidden_ptr, weight_ptr, row, words, num_words, width, WORDS, DEPTH)
            new_top = tl.maximum(top, logits)
            # A lane without a word yet has no maximum, and infinity minus itself is NaN.
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
    """The gradient of hidden vectors: unscaled * scale - miss * w_t, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row).to(tl.int64)
    places = tl.arange(0, BLOCK)
    mask = places < width
    unscaled = tl.load(unscaled_ptr + row * width + places, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + target * width + places, mask=mask, other=0.0).to(tl.float32)
    out = unscaled * tl.load(scale_ptr + row) - tl.load(miss_ptr + row) * weight
    tl.store(out_ptr + row * width + places, out.to(out_ptr.dtype.element_ty), mask=mask)


class _Tiles(NamedTuple):
    rows: int
    words: int
    warps: int


_DEPTH = 64
_STAGES = 3
# By the memory that a program has to itself: the first is the fastest of ten choices on an H200,
# the second fits into smaller GPUs and has not been timed on one.
_TILES = {220_000: _Tiles(128, 256, 8), 0: _Tiles(64, 128, 4)}


@cache
def _tiles_and_programs(device: torch.device) -> tuple[_Tiles, int]:
    if device.type != "cuda":  # the interpreter
        return _Tiles(16, 32, 4), 2
    properties = torch.cuda.get_device_properties(device)
    room = getattr(properties, "shared_memory_per_block_optin", 0)
    tiles = next(tiles for least, tiles in _TILES.items() if room >= least)
    return tiles, properties.multi_processor_count


class Exps(NamedTuple):
    """The gradient of nll_R by the logits is exps_RV times scale_R, and -miss_R at the targets."""

    nll_R: Tensor
    exps_RV: Tensor
    """0 at the target and behind the words."""
    scale_R: Tensor
    miss_R: Tensor
    """1 - p_t. It, nll and scale are 0 where not active."""


def row_exps(
    hidden_RE: Tensor, weight_VE: Tensor, num_words: int, targets_R: Tensor, active_R: Tensor
) -> Exps:
    """The softmax of some rows; weights may have rows of zeros behind the words."""
    (rows, width), padded_words, device = hidden_RE.shape, len(weight_VE), hidden_RE.device
    hidden_RE, weight_VE = hidden_RE.contiguous(), weight_VE.contiguous()
    targets_R = targets_R.contiguous()
    tiles, programs = _tiles_and_programs(device)
    word_tiles = triton.cdiv(padded_words, tiles.words)
    numbers = torch.empty(4, rows, dtype=torch.float32, device=device)
    base_R, nll_R, scale_R, miss_R = numbers
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
    """Write the gradient of hidden vectors; `unscaled_RE` is exps_RV @ weight_VE in float32."""
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
