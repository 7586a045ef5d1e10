"""Dropout with cheap random bits: 16 for every element.

PyTorch's own draws a float64 on a CPU and 128 bits on a GPU to decide about one element, which
takes longer than anything else that is done with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from zipflm.kernels.reference import statistics_dtype

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
    if _is_cpu_eager(x):
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
    """`dropout(x.relu())`, of which nothing but the result is kept for the backward pass.

    `bias`, on a GPU only, is what was added to make `x`, without a gradient of its own: the
    backward pass makes that in passing.
    """
    if not training or rate == 0:
        return x.relu()
    threshold = round(rate * LEVELS)
    result: Tensor
    if _is_cpu_eager(x):
        result = _ReluDropout.apply(x, threshold)  # type: ignore[no-untyped-call]
        return result
    if not x.is_cuda:
        return dropout(x.relu(), rate, training)
    from zipflm.kernels import dropout_triton

    seed = new_seed(x, rate, training) if seed is None else seed
    assert seed is not None
    result = dropout_triton.relu_dropout(x, bias, seed, threshold)
    return result


class _ReluDropout(torch.autograd.Function):
    """On a CPU, where touching new memory takes longer than what is computed there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        y = noise(x.shape, x.dtype, threshold).mul_(x).clamp_min_(0)
        ctx.save_for_backward(y)
        ctx.scale = scale(threshold)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        # What is above zero was neither negative nor dropped.
        return torch.ops.aten.threshold_backward(grad, y, 0).mul_(ctx.scale), None


def _is_cpu_eager(x: Tensor) -> bool:
    """Whether masks come from `noise`, which the compiler cannot follow."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def scale(threshold: int) -> float:
    """By what factor that which is kept grows, if `threshold` of LEVELS are dropped."""
    return LEVELS / (LEVELS - threshold)


def noise(shape: torch.Size, dtype: torch.dtype, threshold: int) -> Tensor:
    """What to multiply with on a CPU: 0 with a probability of threshold / LEVELS, else `scale`."""
    # The seed comes from torch's generator, whose state is that of the run.
    bits: Tensor = _random_bits(torch.randint(1 << 62, (), device="cpu"), shape.numel())
    # Numbers throughout, because a mask of truth values takes longer to convert than to make; of
    # 16 bits' precision at least, until it is decided.
    kept = bits.view(shape).to(statistics_dtype(dtype)).ge_(threshold - LEVELS // 2)
    return kept.mul_(scale(threshold)).to(dtype)


# An operator, because it reads its seed, which only a CPU can do without waiting.
@torch.library.custom_op("zipflm::random_bits", mutates_args=())
def _random_bits(seed: Tensor, number: int) -> Tensor:
    """`number` times 16 bits, by NumPy, which draws them in less than half the time of torch and
    keeps the raw stream of a generator the same from version to version; by torch without it."""
    number_of_draws = (number + 3) // 4
    try:
        import numpy as np
    except ImportError:  # the layers by themselves need nothing but torch
        generator = torch.Generator().manual_seed(int(seed))
        low, high = -(1 << 63), (1 << 63) - 1
        size, device = (number_of_draws,), seed.device
        draws = torch.randint(low, high, size, generator=generator, device=device)
        return draws.view(torch.int16)[:number]
    raw = np.random.SFC64(int(seed)).random_raw(number_of_draws)
    return torch.from_numpy(raw.view(np.int16)[:number])


@_random_bits.register_fake
def _(seed: Tensor, number: int) -> Tensor:
    return seed.new_empty(number, dtype=torch.int16)
