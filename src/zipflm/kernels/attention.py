"""Causal attention; with dropout on a CPU by hand, with cheap masks and without the future.

Shapes: B sequences, H heads, T positions, K head width; N = B x H, Q queries of a block, S keys up
to its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from zipflm.kernels.dropout import LEVELS, noise
from zipflm.kernels.precision import autocast, statistics_dtype

# Queries computed together, each with all keys up to the last of them. Fewer would waste less on
# the future, but small products are slow.
_BLOCK = 64


def causal_attention(query: Tensor, key: Tensor, value: Tensor, rate: float) -> Tensor:
    """[B, H, T, K] of as many positions as keys and values have; `rate` of the weights dropped.

    PyTorch has no single operation for dropout on a CPU, and what it does instead spends most of
    its time on random numbers.
    """
    if rate == 0 or query.device.type != "cpu" or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
    query = query * query.shape[-1] ** -0.5
    inputs_NTK = (autocast(x).flatten(0, 1) for x in (query, key, value))
    attended_NTK: Tensor = _CausalAttention.apply(  # type: ignore[no-untyped-call]
        *inputs_NTK, round(rate * LEVELS)
    )
    return attended_NTK.view(query.shape)


class _CausalAttention(torch.autograd.Function):
    """softmax(q k') with dropout, times v, a block of queries at a time.

    Autograd would keep the noise as well, and allocate more than half again as much: on a CPU
    touching new memory takes longer than computing what is written to it.
    """

    @staticmethod
    @custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, query_NTK: Tensor, key_NTK: Tensor, value_NTK: Tensor, threshold: int
    ) -> Tensor:
        attended_NTK = torch.empty_like(query_NTK, memory_format=torch.contiguous_format)
        kept = []
        for start, end in _blocks(query_NTK):
            weights_NQS = _scores(query_NTK, key_NTK, start, end).softmax(-1).to(query_NTK.dtype)
            dropped_NQS = noise(weights_NQS.shape, weights_NQS.dtype, threshold).mul_(weights_NQS)
            attended_NTK[:, start:end] = torch.bmm(dropped_NQS, value_NTK[:, :end])
            kept += [weights_NQS, dropped_NQS]
        ctx.save_for_backward(query_NTK, key_NTK, value_NTK, attended_NTK, *kept)
        return attended_NTK

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, grad_NTK: Tensor) -> tuple[Tensor | None, ...]:
        query_NTK, key_NTK, value_NTK, attended_NTK, *kept = ctx.saved_tensors
        d_query_NTK = torch.empty_like(query_NTK)
        # Sums over blocks: in low precision each would round again what is there already.
        dtype = statistics_dtype(key_NTK.dtype)
        d_key_NTK, d_value_NTK = (torch.zeros_like(x, dtype=dtype) for x in (key_NTK, value_NTK))
        # Of a softmax: w (dw - sum of w dw), and that sum is the same as attended . grad.
        sum_NT1 = (attended_NTK * grad_NTK).sum(-1, keepdim=True)
        for index, (start, end) in enumerate(_blocks(query_NTK)):
            weights_NQS, dropped_NQS = kept[2 * index : 2 * index + 2]
            grad_NQK = grad_NTK[:, start:end]
            _add_product(d_value_NTK[:, :end], dropped_NQS.mT, grad_NQK)
            d_scores_NQS = torch.bmm(grad_NQK, value_NTK[:, :end].mT).mul_(dropped_NQS)
            d_scores_NQS.addcmul_(weights_NQS, sum_NT1[:, start:end], value=-1)
            d_query_NTK[:, start:end] = torch.bmm(d_scores_NQS, key_NTK[:, :end])
            _add_product(d_key_NTK[:, :end], d_scores_NQS.mT, query_NTK[:, start:end])
        return d_query_NTK, d_key_NTK.to(key_NTK.dtype), d_value_NTK.to(value_NTK.dtype), None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.baddbmm_(left, right)
    else:
        total += torch.bmm(left, right)


def _blocks(query_NTK: Tensor) -> Iterator[tuple[int, int]]:
    length = query_NTK.shape[1]
    return ((start, min(start + _BLOCK, length)) for start in range(0, length, _BLOCK))


def _scores(query_NTK: Tensor, key_NTK: Tensor, start: int, end: int) -> Tensor:
    """Of the queries from `start` to `end` with the keys up to there; -inf for those to come."""
    scores_NQS = torch.bmm(query_NTK[:, start:end], key_NTK[:, :end].mT)
    future_QQ = scores_NQS.new_full((end - start, end - start), -math.inf).triu_(1)
    scores_NQS[:, :, start:] += future_QQ
    return scores_NQS
