"""One pass over logits where plain PyTorch makes five: for `linear_nll_chunked` on a GPU.

Each program owns one row. Shapes: R rows, V words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_WHOLE = 32_768
"""Rows up to this length are held in registers: read once instead of twice."""


@triton.jit
def _row_lse(logits_ptr, row, num_words, stride, BLOCK: tl.constexpr):
    """Log-sum-exp of one row of logits [R, stride] over its first `num_words` columns."""
    columns = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    # A running maximum per lane; lanes meet once at the end.
    for start in range(0, num_words, BLOCK):
        words = start + columns
        logits = tl.load(
            logits_ptr + row * stride + words, mask=words < num_words, other=float("-inf")
        )
        new_top = tl.maximum(top, logits)
        # A lane without a word yet has no maximum, and infinity minus itself is NaN.
        base = tl.where(new_top > float("-inf"), new_top, 0.0)
        total = total * tl.exp(top - base) + tl.exp(logits - base)
        top = new_top
    highest = tl.max(top, 0)
    return highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))


@triton.jit
def _lse_kernel(logits_ptr, lse_ptr, num_words, stride, BLOCK: tl.constexpr):
    """logits [R, stride] float32 -> lse [R] float32."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(lse_ptr + row, _row_lse(logits_ptr, row, num_words, stride, BLOCK))


@triton.jit
def _gradient_kernel(
    logits_ptr, lse_ptr, targets_ptr, grad_ptr, out_ptr, num_words, stride, BLOCK: tl.constexpr
):
    """(softmax - onehot) * grad of each row, 0 behind the words: [R, stride], typed as `out`."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lse, grad = tl.load(lse_ptr + row), tl.load(grad_ptr + row)
    target = tl.load(targets_ptr + row)
    is_word = words < num_words
    # Not even read behind the words: below a low log-sum-exp their exponential would overflow.
    logits = tl.load(logits_ptr + row * stride + words, mask=is_word, other=float("-inf"))
    d_logits = tl.where(is_word, (tl.exp(logits - lse) - (words == target)) * grad, 0.0)
    out = d_logits.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride + words, out, mask=words < stride)


@triton.jit
def _nll_and_gradient_kernel(
    logits_ptr,  # [R, stride] float32
    targets_ptr,  # [R]
    active_ptr,  # [R] bool
    nll_ptr,  # [R] float32
    out_ptr,  # [R, stride]
    num_words,
    stride,
    BLOCK: tl.constexpr,
    IS_WHOLE: tl.constexpr,  # a block holds a row
):
    """nll of each row and softmax - onehot, both 0 where not active; 0 behind the words."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_active = tl.load(active_ptr + row) != 0
    target = tl.load(targets_ptr + row)
    target_logit = tl.load(logits_ptr + row * stride + target)
    if IS_WHOLE:
        is_word = columns < num_words
        logits = tl.load(logits_ptr + row * stride + columns, mask=is_word, other=float("-inf"))
        top = tl.max(logits, 0)
        exps = tl.exp(logits - top)
        total = tl.sum(exps, 0)
        lse = top + tl.log(total)
        _store_gradient(out_ptr + row * stride, columns, exps / total, target, is_active, stride)
    else:
        lse = _row_lse(logits_ptr, row, num_words, stride, BLOCK)
        for start in range(0, stride, BLOCK):
            words = start + columns
            is_word = words < num_words
            logits = tl.load(logits_ptr + row * stride + words, mask=is_word, other=float("-inf"))
            softmax = tl.exp(logits - lse)
            _store_gradient(out_ptr + row * stride, words, softmax, target, is_active, stride)
    tl.store(nll_ptr + row, tl.where(is_active, lse - target_logit, 0.0))


@triton.jit
def _store_gradient(out_ptr, words, softmax, target, is_active, stride):
    d_logits = tl.where(is_active, softmax - (words == target), 0.0)
    tl.store(out_ptr + words, d_logits.to(out_ptr.dtype.element_ty), mask=words < stride)


def row_nll_and_gradient(
    logits_RV: Tensor, num_words: int, targets_R: Tensor, active_R: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """nll of each row of float32 logits and its gradient by them, 0 where not active."""
    rows, stride = logits_RV.shape
    nll_R = torch.empty(rows, dtype=torch.float32, device=logits_RV.device)
    out_RV = torch.empty_like(logits_RV, dtype=dtype)
    is_whole = stride <= _WHOLE
    _nll_and_gradient_kernel[(rows,)](
        logits_RV,
        targets_R.contiguous(),
        active_R.contiguous(),
        nll_R,
        out_RV,
        num_words,
        stride,
        BLOCK=triton.next_power_of_2(stride) if is_whole else _BLOCK,
        IS_WHOLE=is_whole,
        num_warps=16 if is_whole and stride > _BLOCK else 8,
    )
    return nll_R, out_RV


def row_lse(logits_RV: Tensor, num_words: int) -> Tensor:
    """logsumexp of the first `num_words` of each row of float32 logits."""
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
    """Gradient of the nll by the logits, times each row's own; 0 behind the words."""
    rows, stride = logits_RV.shape
    out_RV = torch.empty_like(logits_RV, dtype=dtype)
    per_row = lse_R.contiguous(), targets_R.contiguous(), grad_R.float().contiguous()
    _gradient_kernel[(rows, triton.cdiv(stride, _BLOCK))](
        logits_RV, *per_row, out_RV, num_words, stride, BLOCK=_BLOCK, num_warps=8
    )
    return out_RV
