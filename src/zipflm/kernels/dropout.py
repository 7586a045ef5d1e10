"""Dropout whose masks are cheap on a GPU, and that of a ReLU without any mask to keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 1 << 16


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`F.dropout`; on a GPU `rate` is rounded to 1 / 65,536, and what is kept grows accordingly."""
    if not training or rate == 0:
        return x
    if not x.is_cuda:
        return F.dropout(x, rate)
    keep, scale = _keep(x, rate)
    return torch.where(keep, x * scale, 0.0)


def relu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`dropout(x.relu())`, of which nothing but the result is kept for the backward pass."""
    if not training or rate == 0 or not x.is_cuda:
        return dropout(x.relu(), rate, training)
    keep, scale = _keep(x, rate)
    result: Tensor = _ReluDropout.apply(x, keep, scale)  # type: ignore[no-untyped-call]
    return result


class _ReluDropout(torch.autograd.Function):
    """Where the result is 0, so is the gradient: either the ReLU or the mask made it so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        result = torch.where(keep, x.relu() * scale, 0.0)
        ctx.save_for_backward(result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        return torch.where(result > 0, grad * ctx.scale, 0.0), None, None


def _keep(x: Tensor, rate: float) -> tuple[Tensor, float]:
    """What to keep, and by what factor that grows."""
    from zipflm.kernels.keep_mask_triton import keep_mask

    threshold = round(rate * _LEVELS)
    # From torch's own generator, whose state is that of the run.
    seed = torch.randint(1 << 62, (1,), device=x.device)
    return keep_mask(x.detach(), seed, threshold), _LEVELS / (_LEVELS - threshold)
