"""Causal self-attention with dropout on a GPU: its kernels launched, with the blocks they run in.

Queries, keys and values are read where one product left them, and their gradients are written side
by side as that product's backward pass wants them: nothing is transposed, copied or joined.

Shapes: B sequences, H heads, T positions, K head width, D = H * K, E = 3 D.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from zipflm.kernels.attention_kernels_triton import forward_kernel, keys_kernel, queries_kernel
from zipflm.kernels.dropout import scale
from zipflm.kernels.packed_attention import MAX_HEAD_WIDTH

_LOG2_E = 1.4426950408889634

# A program's part in low precision, by padded head width. "forward": (rows, warps, stages,
# registers), where rows divide 128. "queries": (rows, columns, warps, stages, registers). "keys":
# (keys, rows, warps, stages, registers), where rows divide keys. A limit on a thread's registers
# lets more programs share a processor: while one waits for its products, another computes. 0 is no
# limit.
_BLOCKS: dict[str, dict[int, tuple[int, ...]]] = {
    "forward": {64: (64, 4, 2, 168), 128: (64, 4, 1, 0)},
    "queries": {64: (64, 64, 4, 1, 128), 128: (64, 32, 4, 2, 0)},
    "keys": {64: (64, 32, 4, 2, 168), 128: (64, 32, 4, 2, 0)},
}
_BLOCKS_FLOAT32: dict[str, tuple[int, ...]] = {
    "forward": (32, 4, 1, 0),
    "queries": (32, 32, 4, 1, 0),
    "keys": (32, 32, 4, 1, 0),
}
_SIZES = {"forward": ("ROWS",), "queries": ("ROWS", "COLUMNS"), "keys": ("KEYS", "ROWS")}


def _meta(kernel: str, head: int, dtype: torch.dtype) -> dict[str, Any]:
    """Everything that a kernel is compiled for."""
    padded = max(16, triton.next_power_of_2(head))
    if dtype == torch.float32:
        block = _BLOCKS_FLOAT32[kernel]
    else:
        block = next(block for widest, block in _BLOCKS[kernel].items() if padded <= widest)
    *sizes, warps, stages, registers = block
    return {
        **dict(zip(_SIZES[kernel], sizes, strict=True)),
        "HEAD": head,
        "WIDTH": padded,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # only float32 asks which
        "num_warps": warps,
        "num_stages": stages,
        "maxnreg": registers or None,
    }


def _columns_adjacent(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def forward(qkv_BTE: Tensor, seed: Tensor, num_heads: int, threshold: int) -> tuple[Tensor, Tensor]:
    """out_BTD, and lse_BHT to base 2."""
    batch, length, width = qkv_BTE.shape
    dim = width // 3
    if width % (3 * num_heads) or dim // num_heads > MAX_HEAD_WIDTH:
        raise ValueError(
            f"packed width {width} with {num_heads} heads: it must be three times the heads' width "
            f"together, and a head no wider than {MAX_HEAD_WIDTH}"
        )
    qkv_BTE = _columns_adjacent(qkv_BTE)
    out_BTD = qkv_BTE.new_empty(batch, length, dim)
    lse_BHT = qkv_BTE.new_empty(batch, num_heads, length, dtype=torch.float32)
    if not out_BTD.numel():
        return out_BTD, lse_BHT
    head = dim // num_heads
    meta = _meta("forward", head, qkv_BTE.dtype)
    grid = (triton.cdiv(length, meta["ROWS"]) * batch * num_heads,)
    forward_kernel[grid](
        qkv_BTE,
        out_BTD,
        lse_BHT,
        seed,
        *qkv_BTE.stride()[:2],
        num_heads,
        length,
        threshold,
        head**-0.5 * _LOG2_E,
        scale(threshold),
        DROPS=threshold > 0,
        **meta,
    )
    return out_BTD, lse_BHT


def backward(
    grad_BTD: Tensor,
    qkv_BTE: Tensor,
    out_BTD: Tensor,
    lse_BHT: Tensor,
    seed: Tensor,
    num_heads: int,
    threshold: int,
) -> Tensor:
    """The gradient of the packed projection, contiguous."""
    qkv_BTE, grad_BTD = _columns_adjacent(qkv_BTE), _columns_adjacent(grad_BTD)
    batch, length, dim = out_BTD.shape
    d_qkv_BTE = torch.empty_like(qkv_BTE, memory_format=torch.contiguous_format)
    if not out_BTD.numel():
        return d_qkv_BTE
    head = dim // num_heads
    delta_BHT = torch.empty_like(lse_BHT)
    row_keys_BHT = torch.empty_like(lse_BHT, dtype=torch.int32)
    sizes = (
        *qkv_BTE.stride()[:2],
        *grad_BTD.stride()[:2],
        num_heads,
        length,
        threshold,
        head**-0.5 * _LOG2_E,
        scale(threshold),
        head**-0.5,
    )
    meta = _meta("queries", head, qkv_BTE.dtype)
    grid = (triton.cdiv(length, meta["ROWS"]) * batch * num_heads,)
    queries_kernel[grid](
        qkv_BTE,
        out_BTD.contiguous(),
        grad_BTD,
        lse_BHT,
        seed,
        d_qkv_BTE,
        delta_BHT,
        row_keys_BHT,
        *sizes,
        DROPS=threshold > 0,
        **meta,
    )
    meta = _meta("keys", head, qkv_BTE.dtype)
    grid = (triton.cdiv(length, meta["KEYS"]) * batch * num_heads,)
    keys_kernel[grid](
        qkv_BTE,
        grad_BTD,
        lse_BHT,
        delta_BHT,
        row_keys_BHT,
        d_qkv_BTE,
        *sizes,
        IS_EVEN=length % meta["ROWS"] == 0,
        DROPS=threshold > 0,
        **meta,
    )
    return d_qkv_BTE
