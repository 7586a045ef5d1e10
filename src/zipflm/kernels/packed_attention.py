"""Causal attention with dropout on a GPU, straight from the product that made queries, keys and
values, and back to that product's gradient.

The operators stand here and not beside their kernels, so that recomputation can name them where
there is no Triton.

Shapes: B sequences, H heads, T positions, D model width, E = 3 D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zipflm.kernels.dropout import LEVELS, new_seed

MAX_HEAD_WIDTH = 128


def packed_seed(hidden_BTD: Tensor, num_heads: int, rate: float, training: bool) -> Tensor | None:
    """The seed for `packed_causal_attention` where that is the fast form, else None.

    That is on a GPU, with dropout, in low precision. Everywhere else attention is PyTorch's own.
    """
    is_low = hidden_BTD.dtype in (torch.bfloat16, torch.float16)
    if not is_low or hidden_BTD.shape[-1] // num_heads > MAX_HEAD_WIDTH:
        return None
    return new_seed(hidden_BTD, rate, training)


def packed_causal_attention(qkv_BTE: Tensor, num_heads: int, rate: float, seed: Tensor) -> Tensor:
    """out_BTD of queries, keys and values that lie side by side, as `attention.causal_attention`.

    `rate` is rounded to 1 / 65,536; `seed` decides which weights are dropped. Its gradient is
    packed as well.
    """
    out_BTD: Tensor = packed_attention(qkv_BTE, seed, num_heads, round(rate * LEVELS))[0]
    return out_BTD


@torch.library.custom_op("zipflm::packed_attention", mutates_args=())
def packed_attention(
    qkv_BTE: Tensor, seed: Tensor, num_heads: int, threshold: int
) -> tuple[Tensor, Tensor]:
    """out_BTD and the log-sum-exp of every row to base 2, lse_BHT.

    A weight is dropped with probability threshold / 65,536, as `seed`, one int64 on the device,
    decides.
    """
    from zipflm.kernels import attention_triton

    return attention_triton.forward(qkv_BTE, seed, num_heads, threshold)


@packed_attention.register_fake
def _(qkv_BTE: Tensor, seed: Tensor, num_heads: int, threshold: int) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv_BTE.shape
    out_BTD = qkv_BTE.new_empty(batch, length, width // 3)
    return out_BTD, qkv_BTE.new_empty(batch, num_heads, length, dtype=torch.float32)


@torch.library.custom_op("zipflm::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad_BTD: Tensor,
    qkv_BTE: Tensor,
    out_BTD: Tensor,
    lse_BHT: Tensor,
    seed: Tensor,
    num_heads: int,
    threshold: int,
) -> Tensor:
    """The gradient of the packed queries, keys and values."""
    from zipflm.kernels import attention_triton

    saved = qkv_BTE, out_BTD, lse_BHT, seed
    return attention_triton.backward(grad_BTD, *saved, num_heads, threshold)


@packed_attention_backward.register_fake
def _(
    grad_BTD: Tensor,
    qkv_BTE: Tensor,
    out_BTD: Tensor,
    lse_BHT: Tensor,
    seed: Tensor,
    num_heads: int,
    threshold: int,
) -> Tensor:
    return torch.empty_like(qkv_BTE, memory_format=torch.contiguous_format)


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: tuple[Tensor, Tensor]
) -> None:
    qkv_BTE, seed, ctx.num_heads, ctx.threshold = inputs
    ctx.save_for_backward(qkv_BTE, *output, seed)


def _backward(ctx: Any, grad_BTD: Tensor, grad_lse_BHT: Tensor) -> tuple[Tensor, None, None, None]:
    gradient = packed_attention_backward(grad_BTD, *ctx.saved_tensors, ctx.num_heads, ctx.threshold)
    return gradient, None, None, None


packed_attention.register_autograd(_backward, setup_context=_setup_context)
