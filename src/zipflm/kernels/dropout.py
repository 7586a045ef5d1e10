"""Dropout with cheap random bits on a GPU; elsewhere PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def new_seed(x: Tensor, rate: float, training: bool) -> Tensor | None:
    """What decides a mask on a GPU, for calls that must draw the same one twice; None where
    nothing is dropped, and on a CPU, where PyTorch's generator decides.

    It comes from torch's own generator, whose state is that of the run.
    """
    if not training or rate == 0 or not x.is_cuda:
        return None
    return torch.randint(1 << 62, (1,), device=x.device)


def dropout(x: Tensor, rate: float, training: bool, seed: Tensor | None = None) -> Tensor:
    """`F.dropout`; on a GPU `rate` is rounded to 1 / 65,536, and what is kept grows accordingly.

    `seed`, as `new_seed` gives it, is drawn where it is missing.
    """
    if not training or rate == 0:
        return x
    if not x.is_cuda:
        return F.dropout(x, rate)
    from zipflm.kernels.dropout_triton import LEVELS, keep_mask, scale

    threshold = round(rate * LEVELS)
    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    keep = keep_mask(x.detach(), seed, threshold)
    return torch.where(keep, x * scale(threshold), 0.0)


def relu_dropout(x: Tensor, rate: float, training: bool, seed: Tensor | None = None) -> Tensor:
    """`dropout(x.relu())`, of which nothing but the result is kept for the backward pass."""
    if not training or rate == 0 or not x.is_cuda:
        return dropout(x.relu(), rate, training, seed)
    from zipflm.kernels import dropout_triton

    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    result: Tensor = dropout_triton.relu_dropout(x, seed, round(rate * dropout_triton.LEVELS))
    return result
