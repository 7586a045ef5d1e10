"""Dropout with cheap random bits: 16 for every element.

PyTorch's own draws a float64 on a CPU and 128 bits on a GPU to decide about one element, which
takes longer than anything else that is done with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.precision import statistics_dtype

LEVELS = 1 << 16
"""Rates are multiples of 1 / LEVELS."""


def new_seed(x: Tensor, rate: float, training: bool) -> Tensor | None:
    """What decides a mask on a GPU, for calls that must draw the same one twice; None where
    nothing is dropped, and on a CPU, where PyTorch's generator decides.

    It comes from torch's own generator, whose state is that of the run.
    """
    if not training or rate == 0 or not x.is_cuda:
        return None
    return torch.randint(1 << 62, (1,), device=x.device)


def dropout(x: Tensor, rate: float, training: bool, seed: Tensor | None = None) -> Tensor:
    """`F.dropout`; `rate` is rounded to 1 / 65,536, and what is kept grows accordingly.

    `seed`, as `new_seed` gives it, is drawn where it is missing.
    """
    if not training or rate == 0:
        return x
    threshold = round(rate * LEVELS)
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x * _noise(x, threshold)
    if not x.is_cuda:
        return F.dropout(x, rate)
    from zipflm.kernels.dropout_triton import keep_mask

    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    keep = keep_mask(x.detach(), seed, threshold)
    return torch.where(keep, x * scale(threshold), 0.0)


def relu_dropout(
    x: Tensor,
    rate: float,
    training: bool,
    seed: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`dropout(x.relu())`, of which nothing but the result is kept for the backward pass.

    `bias`, on a GPU only, is what was added to make `x`, without a gradient of its own: the
    backward pass makes that in passing.
    """
    if not training or rate == 0 or not x.is_cuda:
        return dropout(x.relu(), rate, training, seed)
    from zipflm.kernels import dropout_triton

    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    result: Tensor = dropout_triton.relu_dropout(x, bias, seed, round(rate * LEVELS))
    return result


def scale(threshold: int) -> float:
    """By what factor that which is kept grows, if `threshold` of LEVELS are dropped."""
    return LEVELS / (LEVELS - threshold)


def _noise(x: Tensor, threshold: int) -> Tensor:
    """What to multiply with on a CPU: 0 with a probability of threshold / LEVELS, else `scale`."""
    number = x.numel()
    # Four elements share one draw of torch's generator, whose state is that of the run.
    draws = torch.randint(-(1 << 63), (1 << 63) - 1, ((number + 3) // 4,))
    bits = draws.view(torch.int16)[:number].view(x.shape)
    # Numbers throughout, because a mask of truth values takes longer to convert than to make; of
    # 16 bits' precision at least, until it is decided.
    noise = bits.to(statistics_dtype(x.dtype)).ge_(threshold - LEVELS // 2)
    return noise.mul_(scale(threshold)).to(x.dtype)
