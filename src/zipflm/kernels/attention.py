"""Causal attention; with dropout on a CPU as plain operations, whose masks are then cheap.

Shapes: B sequences, H heads, T positions, K head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.dropout import dropout


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
