"""One pass over logits where plain PyTorch makes five: for `linear_nll_chunked` on a GPU.

Shapes: R rows, V words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_PARTS = {1 << 16: 4096, 1 << 62: 8192}
"""Words that a program holds in registers, to read them once, of rows up to a length: the fastest
of six choices on an H200, for 20,096 and 267,776 words."""


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
    part_lse_ptr,  # [R, PARTS] float32
    done_ptr,  # [R + 1] int32, zeros: parts done of each row, and programs started
    num_rows,
    num_words,
    stride,
    num_parts,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,  # num_parts or a little more
):
    """nll of each row and softmax - onehot, both 0 where not active; 0 behind the words.

    Each program has a part of a row in its registers and reads it once. Those of a row wait for
    each other in between. They are numbered as they start, so that all programs with a lower number
    are running or done: only the last row that has started can lack programs, and it gets them as
    long as the device can run all parts of one row at once.
    """
    number = tl.atomic_add(done_ptr + num_rows, 1)
    row, part = (number // num_parts).to(tl.int64), number % num_parts
    words = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + words, mask=words < num_words, other=float("-inf"))
    is_active = tl.load(active_ptr + row) != 0
    target = tl.load(targets_ptr + row)
    top = tl.max(logits, 0)
    exps = tl.exp(logits - top)
    lse = top + tl.log(tl.sum(exps, 0))
    if PARTS > 1:
        tl.store(part_lse_ptr + row * num_parts + part, lse)
        tl.debug_barrier()
        done = tl.atomic_add(done_ptr + row, 1, sem="acq_rel") + 1
        while done < num_parts:
            done = tl.atomic_add(done_ptr + row, 0, sem="acquire")
        parts = tl.arange(0, PARTS)
        lses = tl.load(
            part_lse_ptr + row * num_parts + parts,
            mask=parts < num_parts,
            other=float("-inf"),
            volatile=True,
        )
        highest = tl.max(lses, 0)
        lse = highest + tl.log(tl.sum(tl.exp(lses - highest), 0))
    d_logits = exps * tl.exp(top - lse) - (words == target)
    d_logits = tl.where(is_active, d_logits, 0.0)
    out = d_logits.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride + words, out, mask=words < stride)
    if part == 0:
        nll = lse - tl.load(logits_ptr + row * stride + target)
        tl.store(nll_ptr + row, tl.where(is_active, nll, 0.0))


def _most_waiting(device: torch.device) -> int:
    """How many programs may wait for each other: all of them must be running at once.

    Each processor of a GPU runs one at least. Half of them are left to other kernels, which may
    themselves wait for another GPU. The interpreter runs one program after the other.
    """
    if device.type != "cuda":
        return 1
    return max(1, torch.cuda.get_device_properties(device).multi_processor_count // 2)


def row_nll_and_gradient(
    logits_RV: Tensor, num_words: int, targets_R: Tensor, active_R: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """nll of each row of float32 logits and its gradient by them, 0 where not active."""
    rows, stride = logits_RV.shape
    part = next(part for longest, part in _PARTS.items() if stride <= longest)
    block = min(part, triton.next_power_of_2(stride))
    num_parts = triton.cdiv(num_words, block)
    if num_parts > _most_waiting(logits_RV.device):
        lse_R = row_lse(logits_RV, num_words)
        nll_R = lse_R - logits_RV.gather(1, targets_R.unsqueeze(1)).squeeze(1)
        out_RV = row_gradient(logits_RV, num_words, lse_R, targets_R, active_R, dtype)
        return nll_R.where(active_R, 0.0), out_RV
    device = logits_RV.device
    nll_R = torch.empty(rows, device=device)
    out_RV = torch.empty_like(logits_RV, dtype=dtype)
    part_lse = torch.empty(rows, num_parts, device=device)
    done = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    _nll_and_gradient_kernel[(rows * num_parts,)](
        logits_RV,
        targets_R.contiguous(),
        active_R.contiguous(),
        nll_R,
        out_RV,
        part_lse,
        done,
        rows,
        num_words,
        stride,
        num_parts,
        BLOCK=block,
        PARTS=triton.next_power_of_2(num_parts),
        num_warps=4,
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
