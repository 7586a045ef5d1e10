"""One pass over logits where plain PyTorch makes five: for `linear_nll_chunked` on a GPU.

Shapes: R rows, V words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _lse_kernel(logits_ptr, lse_ptr, num_words, stride, BLOCK: tl.constexpr):
    """Log-sum-exp of each row of logits [R, stride] float32 over its first `num_words` columns."""
    row = tl.program_id(0).to(tl.int64)
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
    tl.store(lse_ptr + row, highest + tl.log(tl.sum(total * tl.exp(top - highest), 0)))


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
