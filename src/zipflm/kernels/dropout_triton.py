"""Dropout on a GPU.

Philox generates 128 bits at a time. The compiler's dropout uses 32 of them for one element, which
takes longer than reading and writing the element. Here eight elements share one draw.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zipflm.kernels.dropout import scale

_BLOCK = 1024  # random draws per program
_ROWS, _COLUMNS = 8, 512  # block of the ReLU's backward pass
_MAX_PROGRAMS = 65_535  # CUDA's maximum along the second axis of a grid
# Seven rounds pass all known statistical tests. Ten, the usual default, add a safety margin.
_ROUNDS = tl.constexpr(7)


@triton.jit
def _keep_kernel(keep_ptr, seed_ptr, count, threshold, BLOCK: tl.constexpr):
    """Store keep [count] bool: true where 16 random bits are at least `threshold`."""
    offsets, bits = _draw(seed_ptr, BLOCK)
    for index in tl.static_range(8):
        keep = _select_bits(bits, index) >= threshold
        tl.store(keep_ptr + offsets + index * BLOCK, keep, mask=offsets + index * BLOCK < count)


@triton.jit
def _relu_kernel(x_ptr, y_ptr, seed_ptr, count, threshold, scale, BLOCK: tl.constexpr):
    """Store y = relu(x) * scale where 16 random bits are at least `threshold`, 0 elsewhere."""
    first_offsets, bits = _draw(seed_ptr, BLOCK)
    for index in tl.static_range(8):
        offsets = first_offsets + index * BLOCK
        x = tl.load(x_ptr + offsets, mask=offsets < count, other=0.0).to(tl.float32)
        is_kept = (x > 0) & (_select_bits(bits, index) >= threshold)
        y = tl.where(is_kept, x * scale, 0.0)
        tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=offsets < count)


@triton.jit
def _draw(seed_ptr, BLOCK: tl.constexpr):
    """Return the offsets of the first of a program's eight blocks, and 128 random bits per lane."""
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    counter = (program * BLOCK + lanes).to(tl.uint32)
    bits = tl.randint4x(tl.load(seed_ptr), counter, n_rounds=_ROUNDS)
    return program * 8 * BLOCK + lanes, bits


@triton.jit
def _select_bits(bits, index: tl.constexpr):
    """Select the 16 bits of one of the eight blocks."""
    return ((bits[index // 2] >> (16 * (index % 2))) & 0xFFFF).to(tl.int32)


@torch.library.custom_op("zipflm::keep_mask", mutates_args=())
def keep_mask(like: Tensor, seed: Tensor, threshold: int) -> Tensor:
    """Draw a mask shaped like `like`. Each element is False with probability threshold / 65,536.

    `seed` is one int64 on the device.
    """
    keep = torch.empty(like.shape, dtype=torch.bool, device=like.device)
    if keep.numel():
        grid = (triton.cdiv(keep.numel(), 8 * _BLOCK),)
        with torch.cuda.device_of(keep):  # Triton launches kernels on the current GPU
            _keep_kernel[grid](keep, seed, keep.numel(), threshold, BLOCK=_BLOCK, num_warps=4)
    return keep


@keep_mask.register_fake
def _(like: Tensor, seed: Tensor, threshold: int) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


@triton.jit
def _relu_backward_kernel(
    grad_ptr,  # [N, F]
    y_ptr,  # [N, F]
    dx_ptr,  # [N, F]
    sums_ptr,  # [programs(1), F] float32
    num_rows,
    width,
    scale,
    rows_per_program,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store dx (grad * scale if y > 0, else 0) and its column sums over this program's rows."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * rows_per_program
    last = tl.minimum(first + rows_per_program, num_rows)
    sums = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        offsets = rows.to(tl.int64)[:, None] * width + columns[None, :]
        inside = (rows < last)[:, None] & (columns < width)[None, :]
        y = tl.load(y_ptr + offsets, mask=inside, other=0.0)
        grad = tl.load(grad_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        dx = tl.where(y > 0, grad * scale, 0.0).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offsets, dx, mask=inside)
        sums += tl.sum(dx.to(tl.float32), 0)
    tl.store(sums_ptr + tl.program_id(1) * width + columns, sums, mask=columns < width)


@torch.library.custom_op("zipflm::relu_dropout", mutates_args=())
def relu_dropout(x: Tensor, bias: Tensor | None, seed: Tensor, threshold: int) -> Tensor:
    """Apply ReLU, then dropout with the mask of `keep_mask`.

    The backward pass only needs the result, which is 0 wherever the ReLU or the mask made it 0.

    `bias` was already added to `x` without a gradient. The backward pass sums its gradient while
    it stores the gradient of `x`; a separate sum would have to read that again.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        grid = (triton.cdiv(x.numel(), 8 * _BLOCK),)
        factor = scale(threshold)
        with torch.cuda.device_of(x):
            _relu_kernel[grid](x, y, seed, x.numel(), threshold, factor, BLOCK=_BLOCK, num_warps=4)
    return y


@relu_dropout.register_fake
def _(x: Tensor, bias: Tensor | None, seed: Tensor, threshold: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("zipflm::relu_dropout_backward", mutates_args=())
def relu_dropout_backward(grad: Tensor, y: Tensor, threshold: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its float32 sums over all dimensions except the last."""
    grad, width = grad.contiguous(), y.shape[-1]
    dx = torch.empty_like(y)
    num_rows = y.numel() // max(width, 1)
    rows_per_program = max(64, triton.cdiv(num_rows, _MAX_PROGRAMS))
    sums = y.new_zeros(triton.cdiv(num_rows, rows_per_program), width, dtype=torch.float32)
    if y.numel():
        grid = (triton.cdiv(width, _COLUMNS), len(sums))
        sizes = num_rows, width, scale(threshold), rows_per_program
        _relu_backward_kernel[grid](
            grad, y, dx, sums, *sizes, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4
        )
    return dx, sums.sum(0)


@relu_dropout_backward.register_fake
def _(grad: Tensor, y: Tensor, threshold: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), y.new_empty(y.shape[-1], dtype=torch.float32)


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, int], output: Tensor
) -> None:
    ctx.save_for_backward(output)
    ctx.bias_dtype = None if inputs[1] is None else inputs[1].dtype
    ctx.threshold = inputs[3]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    (y,) = ctx.saved_tensors
    if ctx.bias_dtype is None:
        return torch.where(y > 0, grad * scale(ctx.threshold), 0.0), None, None, None
    dx, sums = relu_dropout_backward(grad, y, ctx.threshold)
    return dx, sums.to(ctx.bias_dtype), None, None


relu_dropout.register_autograd(_backward, setup_context=_setup_context)
