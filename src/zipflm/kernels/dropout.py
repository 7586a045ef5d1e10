"""Dropout with 16 random bits per element.

PyTorch draws a float64 per element on a CPU, and compiled code draws 128 bits per element on a GPU,
which takes longer than the rest of dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.reference import statistics_dtype

LEVELS = 1 << 16
"""Rates are multiples of 1 / LEVELS."""


def new_seed(x: Tensor, rate: float, training: bool) -> Tensor | None:
    """Draw a seed from torch's generator, for calls on a GPU that must draw the same mask twice.

    Returns None if nothing is dropped, and on other devices, where dropout draws from torch's
    generator.
    """
    if not training or rate == 0 or not x.is_cuda:
        return None
    return torch.randint(1 << 62, (1,), device=x.device)


def dropout(x: Tensor, rate: float, training: bool, seed: Tensor | None = None) -> Tensor:
    """`F.dropout`. On a GPU, and in uncompiled code on a CPU, `rate` is rounded to a multiple of
    1 / 65,536. `seed` comes from `new_seed` (default: a new one)."""
    if not training or rate == 0:
        return x
    threshold = round(rate * LEVELS)
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x * noise(x.shape, x.dtype, threshold)
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
    """`dropout(x.relu())` that keeps only its result for the backward pass on a GPU.

    `bias` (GPU only) was already added to `x` without a gradient. The backward pass of this
    function computes its gradient.
    """
    if not training or rate == 0 or not x.is_cuda:
        return dropout(x.relu(), rate, training)
    from zipflm.kernels import dropout_triton

    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    result: Tensor = dropout_triton.relu_dropout(x, bias, seed, round(rate * LEVELS))
    return result


def scale(threshold: int) -> float:
    """Return the factor for kept elements if the rate is threshold / LEVELS."""
    return LEVELS / (LEVELS - threshold)


def noise(shape: torch.Size, dtype: torch.dtype, threshold: int) -> Tensor:
    """Draw multiplicative noise on a CPU: 0 with probability threshold / LEVELS, else `scale`."""
    bits: Tensor = _random_bits(torch.randint(1 << 62, (), device="cpu"), shape.numel())
    # Use floats throughout, because converting a bool mask takes longer than creating it. They must
    # represent 16 bits exactly until the comparison.
    kept = bits.view(shape).to(statistics_dtype(dtype)).ge_(threshold - LEVELS // 2)
    return kept.mul_(scale(threshold)).to(dtype)


# An operator, because tracers cannot read the value of the seed.
@torch.library.custom_op("zipflm::random_bits", mutates_args=())
def _random_bits(seed: Tensor, count: int) -> Tensor:
    """Draw `count` random int16. NumPy takes less than half the time of torch, and the raw stream
    of its generators is stable across versions. torch is the fallback."""
    num_draws = (count + 3) // 4
    try:
        import numpy as np
    except ImportError:  # the layers only require torch
        generator = torch.Generator().manual_seed(int(seed))
        low, high = -(1 << 63), (1 << 63) - 1
        draws = torch.randint(low, high, (num_draws,), generator=generator, device=seed.device)
        return draws.view(torch.int16)[:count]
    raw = np.random.SFC64(int(seed)).random_raw(num_draws)
    return torch.from_numpy(raw.view(np.int16)[:count])


@_random_bits.register_fake
def _(seed: Tensor, count: int) -> Tensor:
    return seed.new_empty(count, dtype=torch.int16)
