"""Which elements dropout keeps: random bits on a GPU, all of them used.

Philox gives 128 bits at a time. The compiler's own dropout takes 32 of them for an element and
drops the rest, which costs more time than reading and writing the element; here eight elements
share one draw, 16 bits each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _keep_kernel(keep_ptr, seed_ptr, number, threshold, BLOCK: tl.constexpr):
    """keep [number] bool: true where 16 random bits are `threshold` or more."""
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    seed = tl.load(seed_ptr)
    first, second, third, fourth = tl.randint4x(seed, (program * BLOCK + lanes).to(tl.uint32))
    places = program * 8 * BLOCK + lanes
    _store(keep_ptr, places, first, number, threshold, BLOCK)
    _store(keep_ptr, places + 2 * BLOCK, second, number, threshold, BLOCK)
    _store(keep_ptr, places + 4 * BLOCK, third, number, threshold, BLOCK)
    _store(keep_ptr, places + 6 * BLOCK, fourth, number, threshold, BLOCK)


@triton.jit
def _store(keep_ptr, places, bits, number, threshold, BLOCK: tl.constexpr):
    low = (bits & 0xFFFF).to(tl.int32) >= threshold
    high = ((bits >> 16) & 0xFFFF).to(tl.int32) >= threshold
    tl.store(keep_ptr + places, low, mask=places < number)
    tl.store(keep_ptr + places + BLOCK, high, mask=places + BLOCK < number)


@torch.library.custom_op("zipflm::keep_mask", mutates_args=())
def keep_mask(like: Tensor, seed: Tensor, threshold: int) -> Tensor:
    """A mask shaped as `like`; each element is false with probability threshold / 65,536.

    `seed`, one int64 on the device, decides which.
    """
    keep = torch.empty(like.shape, dtype=torch.bool, device=like.device)
    grid = (triton.cdiv(keep.numel(), 8 * _BLOCK),)
    if keep.numel():
        _keep_kernel[grid](keep, seed, keep.numel(), threshold, BLOCK=_BLOCK, num_warps=4)
    return keep


@keep_mask.register_fake
def _(like: Tensor, seed: Tensor, threshold: int) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)
