"""Causal attention; with dropout in forms of our own, whose random numbers are cheap.

On a CPU it is plain operations then, on a GPU Triton kernels that read queries, keys and values
where one product left them.

Shapes: B sequences, H heads, T positions, K head width, D = H * K, E = 3 D.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.dropout import LEVELS, dropout, new_seed

MAX_PACKED_HEAD_WIDTH = 128


def causal_attention(query: Tensor, key: Tensor, value: Tensor, rate: float) -> Tensor:
    """[B, H, T, K] of as many positions as keys and values have; `rate` of the weights dropped.

    PyTorch has no single operation for dropout on a CPU, and what it does instead spends most of
    its time on random numbers.
    """
    if rate == 0 or query.device.type != "cpu" or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
    rows, heads, length, width = query.shape
    query, key, value = (x.reshape(rows * heads, length, width) for x in (query, key, value))
    future = torch.full((length, length), -math.inf, dtype=query.dtype).triu_(1)
    scores = torch.baddbmm(future, query, key.transpose(1, 2), alpha=width**-0.5)
    weights = dropout(scores.softmax(dim=-1), rate, training=True)
    return torch.bmm(weights, value).view(rows, heads, length, width)


def packed_seed(hidden_BTD: Tensor, num_heads: int, rate: float, training: bool) -> Tensor | None:
    """The seed for `packed_causal_attention` where that is the fast form, else None.

    That is on a GPU, with dropout, in low precision. Everywhere else attention is PyTorch's own.
    """
    is_low = hidden_BTD.dtype in (torch.bfloat16, torch.float16)
    if not is_low or hidden_BTD.shape[-1] // num_heads > MAX_PACKED_HEAD_WIDTH:
        return None
    return new_seed(hidden_BTD, rate, training)


def packed_causal_attention(qkv_BTE: Tensor, num_heads: int, rate: float, seed: Tensor) -> Tensor:
    """out_BTD of queries, keys and values that lie side by side, as `causal_attention`.

    `rate` is rounded to 1 / 65,536; `seed` decides which weights are dropped. Its gradient is
    packed as well.
    """
    out_BTD: Tensor = packed_attention(qkv_BTE, seed, num_heads, round(rate * LEVELS))[0]
    return out_BTD


# The operators stand here and not beside their kernels, so that recomputation can name them where
# there is no Triton.
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
