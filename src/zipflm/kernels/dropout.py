"""Dropout with cheap random bits on a GPU; elsewhere PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`F.dropout`; on a GPU `rate` is rounded to 1 / 65,536, and what is kept grows accordingly."""
    if not training or rate == 0:
        return x
    if not x.is_cuda:
        return F.dropout(x, rate)
    from zipflm.kernels.dropout_triton import LEVELS, keep_mask, scale

    threshold = round(rate * LEVELS)
    keep = keep_mask(x.detach(), _seed(x), threshold)
    return torch.where(keep, x * scale(threshold), 0.0)


def relu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`dropout(x.relu())`, of which nothing but the result is kept for the backward pass."""
    if not training or rate == 0 or not x.is_cuda:
        return dropout(x.relu(), rate, training)
    from zipflm.kernels import dropout_triton

    result: Tensor = dropout_triton.relu_dropout(x, _seed(x), round(rate * dropout_triton.LEVELS))
    return result


def _seed(x: Tensor) -> Tensor:
    """From torch's own generator, whose state is that of the run."""
    return torch.randint(1 << 62, (1,), device=x.device)
