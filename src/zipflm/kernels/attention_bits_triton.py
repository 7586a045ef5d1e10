"""Which weights dropout takes from attention on a GPU.

It has to decide about every weight in three kernels with different tiles, so the decision is a
function of the seed, the head, the row and the column alone. Philox draws a key for each row, which
costs next to nothing, and a short integer hash of that key and the column gives 32 bits: 16 each
for column c and column c + 64. The forward pass takes both columns at once, and one hash does.

Shapes: B sequences, H heads, T positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Two columns at this distance share a hash, which makes it the width of the forward pass's tiles.
COLUMNS_APART = tl.constexpr(64)
_ROUNDS = tl.constexpr(7)
# The last factor of the hash. The upper half of the product decides about the upper of two columns,
# the lower half about the lower one; the second factor is the first, moved up by 16 places, which
# puts that half on top.
UPPER = tl.constexpr(0xC2B2AE35)
LOWER = tl.constexpr(0xAE350000)


@triton.jit
def row_keys_of(seed_ptr, counter):
    """32 random bits for every row of every head."""
    return tl.randint(tl.load(seed_ptr), counter.to(tl.uint32), n_rounds=_ROUNDS).to(tl.uint32)


@triton.jit
def column_hash(row_keys, columns):
    """32 bits that columns c and c + 64 of a group of 128 share; arguments broadcast.

    `UPPER` or `LOWER` times these give a column its random bits, in the upper half. The keys are
    random already, so two multiplications suffice to part a row's columns; without the shift, the
    lower column would know nothing of the upper half of the key.
    """
    places = ((columns >> 7) * 64 + (columns & 63)).to(tl.uint32)
    bits = (row_keys ^ (places * 0x9E3779B1)) * 0x85EBCA6B
    return bits ^ (bits >> 15)


@triton.jit
def limit_of(threshold):
    """A weight is kept if its random bits are not below this; those of the lower half, which are
    no part of the draw, cannot change that."""
    return threshold.to(tl.uint32) << 16


@triton.jit
def is_kept(row_keys, columns, threshold):
    """Whether weights are kept, each by itself; arguments broadcast."""
    factors = tl.where((columns & 64) != 0, UPPER, LOWER).to(tl.uint32)
    return column_hash(row_keys, columns) * factors >= limit_of(threshold)


@triton.jit(do_not_specialize=["threshold", "length"])
def _keep_kernel(
    keep_ptr,  # [B * H * T, T] bool
    seed_ptr,  # [1] int64
    num_rows,
    length,
    threshold,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A block of the mask that the other kernels use without ever writing it down."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    keep = is_kept(row_keys_of(seed_ptr, rows)[:, None], columns, threshold)
    places = rows.to(tl.int64)[:, None] * length + columns
    tl.store(keep_ptr + places, keep, mask=(rows < num_rows)[:, None] & (columns < length))


def keep_mask(seed: Tensor, heads_of_all: int, length: int, threshold: int) -> Tensor:
    """[B * H, T, T] bool: which weights the kernels keep; for tests and other implementations."""
    keep = torch.empty(heads_of_all, length, length, dtype=torch.bool, device=seed.device)
    num_rows, block = heads_of_all * length, 64
    if num_rows:
        _keep_kernel[(triton.cdiv(num_rows, block),)](
            keep,
            seed,
            num_rows,
            length,
            threshold,
            ROWS=block,
            COLUMNS=triton.next_power_of_2(length),
            num_warps=8,
        )
    return keep
