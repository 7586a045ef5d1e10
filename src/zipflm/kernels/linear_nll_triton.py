"""`linear_nll` on a GPU for narrow bands: logits never leave the registers.

Active rows are moved to the front and their number stays on the device; blocks beyond it return at
once, so that a band costs what its own tokens cost and the host never asks how many there are. The
backward pass computes the logits again, once for each gradient. Sums over words are split between
programs and added up afterwards in a fixed order: equal inputs give equal bits.

For widths up to `MAX_WIDTH`: a block of rows must fit into registers.

Shapes: N tokens (R active ones in front), E width, V words, S splits of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipflm.kernels.nll_operator import nll_operator

MAX_WIDTH = 512


@triton.jit
def _lse_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    lse_ptr,  # [S, N] float32
    count_ptr,  # [1] number of active rows
    num_rows,
    num_words,
    width,
    words_per_split,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Log-sum-exp of each row's logits over one split of the words."""
    row_block, split = tl.program_id(0), tl.program_id(1)
    count = tl.load(count_ptr)
    if row_block * ROWS >= count:
        return
    rows = row_block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    in_width = (columns < width)[None, :]
    in_rows = rows < count
    hidden = tl.load(
        hidden_ptr + rows[:, None].to(tl.int64) * width + columns[None, :],
        mask=in_rows[:, None] & in_width,
        other=0.0,
    )
    # Online: `top` is the largest logit so far, `total` the sum of exponentials below it.
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    first = split * words_per_split
    last = tl.minimum(first + words_per_split, num_words)
    for start in range(first, last, WORDS):
        words = start + tl.arange(0, WORDS)
        in_words = words < last
        weight = tl.load(
            weight_ptr + words[:, None].to(tl.int64) * width + columns[None, :],
            mask=in_words[:, None] & in_width,
            other=0.0,
        )
        logits = tl.dot(hidden, tl.trans(weight), input_precision=PRECISION)
        logits = tl.where(in_words[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(logits - new_top[:, None]), 1)
        top = new_top
    tl.store(lse_ptr + split * num_rows + rows, top + tl.log(total), mask=in_rows)


@triton.jit
def _hidden_gradient_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    targets_ptr,  # [N]
    lse_ptr,  # [N] float32
    grad_ptr,  # [N] float32
    d_hidden_ptr,  # [S, N, E] float32
    count_ptr,  # [1]
    num_rows,
    num_words,
    width,
    words_per_split,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(softmax - onehot) @ weight over one split of the words, times each row's gradient."""
    row_block, split = tl.program_id(0), tl.program_id(1)
    count = tl.load(count_ptr)
    if row_block * ROWS >= count:
        return
    rows = row_block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    in_width = (columns < width)[None, :]
    in_rows = rows < count
    places = rows[:, None].to(tl.int64) * width + columns[None, :]
    mask = in_rows[:, None] & in_width
    hidden = tl.load(hidden_ptr + places, mask=mask, other=0.0)
    lse = tl.load(lse_ptr + rows, mask=in_rows, other=0.0)
    grad = tl.load(grad_ptr + rows, mask=in_rows, other=0.0)
    targets = tl.load(targets_ptr + rows, mask=in_rows, other=-1)
    d_hidden = tl.zeros([ROWS, WIDTH], tl.float32)
    first = split * words_per_split
    last = tl.minimum(first + words_per_split, num_words)
    for start in range(first, last, WORDS):
        words = start + tl.arange(0, WORDS)
        in_words = words < last
        weight = tl.load(
            weight_ptr + words[:, None].to(tl.int64) * width + columns[None, :],
            mask=in_words[:, None] & in_width,
            other=0.0,
        )
        logits = tl.dot(hidden, tl.trans(weight), input_precision=PRECISION)
        # Zero weights alone would not silence the words behind the end: below a low log-sum-exp
        # their exponential overflows, and infinity times zero is NaN.
        logits = tl.where(in_words[None, :], logits, float("-inf"))
        d_logits = tl.exp(logits - lse[:, None]) - (words[None, :] == targets[:, None])
        d_logits = (d_logits * grad[:, None]).to(weight.dtype)
        d_hidden = tl.dot(d_logits, weight, d_hidden, input_precision=PRECISION)
    tl.store(d_hidden_ptr + split.to(tl.int64) * num_rows * width + places, d_hidden, mask=mask)


@triton.jit
def _weight_gradient_kernel(
    hidden_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    targets_ptr,  # [N]
    lse_ptr,  # [N] float32
    grad_ptr,  # [N] float32
    d_weight_ptr,  # [V, E]
    count_ptr,  # [1]
    num_words,
    width,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(softmax - onehot) * gradient, transposed, @ hidden, for one block of words."""
    words = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    columns = tl.arange(0, WIDTH)
    in_width = (columns < width)[None, :]
    in_words = words < num_words
    places = words[:, None].to(tl.int64) * width + columns[None, :]
    mask = in_words[:, None] & in_width
    weight = tl.load(weight_ptr + places, mask=mask, other=0.0)
    d_weight = tl.zeros([WORDS, WIDTH], tl.float32)
    count = tl.load(count_ptr)
    for start in range(0, count, ROWS):
        rows = start + tl.arange(0, ROWS)
        in_rows = rows < count
        hidden = tl.load(
            hidden_ptr + rows[:, None].to(tl.int64) * width + columns[None, :],
            mask=in_rows[:, None] & in_width,
            other=0.0,
        )
        lse = tl.load(lse_ptr + rows, mask=in_rows, other=0.0)
        grad = tl.load(grad_ptr + rows, mask=in_rows, other=0.0)
        targets = tl.load(targets_ptr + rows, mask=in_rows, other=-1)
        logits = tl.dot(weight, tl.trans(hidden), input_precision=PRECISION)
        # Neither rows behind the count nor words behind the end, as above.
        logits = tl.where(in_words[:, None] & in_rows[None, :], logits, float("-inf"))
        d_logits = tl.exp(logits - lse[None, :]) - (words[:, None] == targets[None, :])
        d_logits = (d_logits * grad[None, :]).to(hidden.dtype)
        d_weight = tl.dot(d_logits, hidden, d_weight, input_precision=PRECISION)
    tl.store(d_weight_ptr + places, d_weight.to(d_weight_ptr.dtype.element_ty), mask=mask)


# Rows, words, warps and stages of a kernel's block up to a width: the fastest of nine choices on an
# H200, for widths of 64 and 256 and for few, some and many active rows.
_BLOCKS = {
    "lse": {128: (128, 128, 8, 3), 256: (128, 128, 8, 2)},
    "hidden": {128: (128, 128, 8, 3), 256: (128, 64, 8, 2)},
    "weight": {128: (64, 128, 4, 2), 256: (64, 128, 8, 3)},
}


def _meta(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Block sizes that keep a block of rows, a block of words and a sum in registers."""
    padded = max(16, triton.next_power_of_2(width))
    if dtype == torch.float32:
        rows, words, warps, stages = (32, 32, 4, 2) if padded <= 128 else (16, 16, 8, 2)
    else:
        fitting = [block for widest, block in _BLOCKS[kernel].items() if padded <= widest]
        rows, words, warps, stages = fitting[0] if fitting else (32, 32, 8, 2)
    return {
        "ROWS": rows,
        "WORDS": words,
        "WIDTH": padded,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # only float32 asks which
        "num_warps": warps,
        "num_stages": stages,
    }


def _splits(num_words: int, meta: dict[str, Any]) -> tuple[int, int]:
    """(number of splits, words in each): with few active rows, it is words that fill the device."""
    blocks = triton.cdiv(num_words, meta["WORDS"])
    splits = min(blocks, 16)
    words_per_split = triton.cdiv(blocks, splits) * meta["WORDS"]
    return triton.cdiv(num_words, words_per_split), words_per_split


def _active_first(active_N: Tensor) -> tuple[Tensor, Tensor]:
    """(order that moves active rows to the front, their number [1]), both on the device."""
    ahead_N = active_N.cumsum(0)
    count = active_N.sum(dtype=torch.int32).view(1)
    behind_N = count + (~active_N).cumsum(0)
    places_N = torch.where(active_N, ahead_N, behind_N) - 1
    order_N = torch.empty_like(places_N)
    order_N.scatter_(0, places_N, torch.arange(len(places_N), device=places_N.device))
    return order_N, count


def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """nll_N and the log-sum-exp of every row, both 0 where not active."""
    num_rows, width = hidden_NE.shape
    meta = _meta("lse", width, hidden_NE.dtype)
    splits, words_per_split = _splits(len(weight_VE), meta)
    order_N, count = _active_first(active_N)
    hidden, weight = hidden_NE[order_N], weight_VE.contiguous()
    lse_SN = torch.zeros(splits, num_rows, dtype=torch.float32, device=hidden.device)
    grid = (triton.cdiv(num_rows, meta["ROWS"]), splits)
    _lse_kernel[grid](
        hidden, weight, lse_SN, count, num_rows, len(weight), width, words_per_split, **meta
    )
    lse_N = torch.empty_like(lse_SN[0])
    lse_N[order_N] = lse_SN.logsumexp(0)
    target_N = (hidden_NE.float() * weight[targets_N].float()).sum(-1)
    return (lse_N - target_N).where(active_N, 0.0), lse_N.where(active_N, 0.0)


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    num_rows, width = hidden_NE.shape
    meta = _meta("hidden", width, hidden_NE.dtype)
    splits, words_per_split = _splits(len(weight_VE), meta)
    order_N, count = _active_first(active_N)
    hidden, weight = hidden_NE[order_N], weight_VE.contiguous()
    rows = hidden, weight, targets_N[order_N], lse_N[order_N], grad_N.float()[order_N]
    d_hidden_SNE = hidden.new_zeros(splits, num_rows, width, dtype=torch.float32)
    grid = (triton.cdiv(num_rows, meta["ROWS"]), splits)
    sizes = num_rows, len(weight), width, words_per_split
    _hidden_gradient_kernel[grid](*rows, d_hidden_SNE, count, *sizes, **meta)
    d_hidden_NE = torch.empty_like(hidden_NE)
    d_hidden_NE[order_N] = d_hidden_SNE.sum(0).to(hidden_NE.dtype)
    d_weight_VE = torch.empty_like(weight)
    meta = _meta("weight", width, hidden_NE.dtype)
    word_blocks = triton.cdiv(len(weight), meta["WORDS"])
    _weight_gradient_kernel[(word_blocks,)](*rows, d_weight_VE, count, len(weight), width, **meta)
    return d_hidden_NE, d_weight_VE


linear_nll = nll_operator("linear_nll_triton", forward, backward)
"""The same as `reference.linear_nll`, at a cost in proportion to the active rows."""
