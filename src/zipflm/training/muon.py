"""Muon that updates all matrices of the same shape together, and can skip an update on the device.

`torch.optim.Muon` works on one matrix at a time. With six or more matrices per layer, launching
hundreds of small operations takes longer than the GPU needs to run them. Here matrices of the same
shape are stacked for the Newton-Schulz iteration, unless they are sharded. The results agree
with torch's up to rounding.

Shapes: L matrices with M rows and N columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from zipflm.training.parallel import like_shard, local_shard, local_slices


class StackedMuon(torch.optim.Muon):
    """`torch.optim.Muon` with the two attributes of torch's fused optimizers, which are scalar
    tensors on the device."""

    found_inf: Tensor | None = None
    """If this is 1, the step is skipped."""
    grad_scale: Tensor | None = None
    """Gradients are divided by this."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if isinstance(p, DTensor):
                    self._step_sharded(p, group)
                else:
                    by_shape.setdefault(p.shape, []).append(p)
            for same_shape in by_shape.values():
                self._step_stacked(same_shape, group)

    def _step_stacked(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        lr, buffers = group["lr"], [self._buffer(p) for p in params]
        buffer_LMN = torch.stack(buffers)
        direction_LMN = self._update_momentum(
            buffer_LMN, torch.stack([_gradient(p) for p in params]), group
        )
        torch._foreach_copy_(buffers, list(buffer_LMN))
        update_LMN = _orthogonalize(direction_LMN, group)
        good = self._is_good(direction_LMN.device)
        if group["weight_decay"]:
            torch._foreach_mul_(list(params), 1 - lr * group["weight_decay"] * good)
        matrix_lr = lr * _lr_factor(group["adjust_lr_fn"], params[0].shape)
        torch._foreach_add_(
            list(params), list(update_LMN.to(params[0].dtype) * (-matrix_lr * good))
        )

    def _step_sharded(self, p: DTensor, group: dict[str, Any]) -> None:
        """Update a sharded matrix.

        Only the iteration needs the full matrix. Every process gathers it, which takes less time
        than exchanging parts for each product, and rounding is the same as in a single process.
        """
        lr, shard = group["lr"], local_shard(p)
        buffer, gradient = (local_shard(x) for x in (self._buffer(p), _gradient(p)))
        direction = self._update_momentum(buffer, gradient, group).to(_precision(shard.device))
        full_MN = cast(DTensor, like_shard(direction, p)).full_tensor()
        update = _orthogonalize(full_MN.unsqueeze(0), group)[0][local_slices(p)]
        good = self._is_good(shard.device)
        if group["weight_decay"]:
            shard.mul_(1 - lr * group["weight_decay"] * good)
        matrix_lr = lr * _lr_factor(group["adjust_lr_fn"], p.shape)
        shard.add_(update.to(shard.dtype) * (-matrix_lr * good))

    def _buffer(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        buffer: Tensor = state["momentum_buffer"]
        return buffer

    def _update_momentum(self, buffer: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Update the momentum buffer. Return the direction of the step."""
        momentum: float = group["momentum"]
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        if self.found_inf is not None:
            # To skip the update, use the buffer as the gradient, which leaves the buffer unchanged.
            gradient = torch.where(self.found_inf != 0, buffer, gradient)
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum) if group["nesterov"] else buffer

    def _is_good(self, device: torch.device) -> Tensor:
        """Return 1, or 0 if the update must be skipped."""
        zero = torch.zeros((), device=device)
        return 1 - (zero if self.found_inf is None else self.found_inf)


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _orthogonalize(matrices_LMN: Tensor, group: dict[str, Any]) -> Tensor:
    return orthogonalize(matrices_LMN, group["ns_coefficients"], group["ns_steps"], group["eps"])


def _precision(device: torch.device) -> torch.dtype:
    """Return the dtype of the iteration: bfloat16 as in torch, but float32 on a CPU, where bfloat16
    can take twenty times as long."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def orthogonalize(
    matrices_LMN: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1 (Newton-Schulz)."""
    a, b, c = coefficients
    x = matrices_LMN.to(_precision(matrices_LMN.device))
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.flatten(1).norm(dim=1).clamp(min=eps).view(-1, 1, 1)
    for _ in range(steps):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x.mT if is_tall else x


def _lr_factor(rule: str | None, shape: torch.Size) -> float:
    """Return the learning rate factor for a matrix of this shape, as in torch."""
    rows, columns = shape
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
