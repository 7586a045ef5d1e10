"""torch's Muon for all matrices of a shape at once, able to skip an update on the device.

torch's own works on one matrix at a time. With six matrices per layer that means hundreds of small
operations, which take the host longer to launch than the whole update takes a GPU. Here matrices of
one shape are stacked and go through the Newton-Schulz iteration together. Results agree up to
rounding.

Shapes: L matrices of one shape, M rows, N columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from zipflm.training.filling import local_shard


class StackedMuon(torch.optim.Muon):
    """`torch.optim.Muon`, but changes nothing unless `found_inf`, a scalar tensor on the device,
    is 0 or None."""

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None
    """What to divide gradients by, as for torch's fused optimizers."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(isinstance(p, DTensor) for p in params):
                self._step_sharded()
                return
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in params:
                by_shape.setdefault(p.shape, []).append(p)
            for same in by_shape.values():
                self._step_stacked(same, group)

    def _step_stacked(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        grads, buffers = [], []
        for p in params:
            assert p.grad is not None
            grads.append(p.grad)
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            buffers.append(state["momentum_buffer"])
        gradient_LMN, buffer_LMN = torch.stack(grads), torch.stack(buffers)
        if self.grad_scale is not None:
            gradient_LMN /= self.grad_scale
        good = torch.ones((), device=gradient_LMN.device)
        if self.found_inf is not None:
            # The buffer moves towards the gradient: towards itself it stays, bit for bit.
            gradient_LMN = torch.where(self.found_inf != 0, buffer_LMN, gradient_LMN)
            good = 1 - self.found_inf
        buffer_LMN.lerp_(gradient_LMN, 1 - momentum)
        torch._foreach_copy_(buffers, list(buffer_LMN))
        if group["nesterov"]:
            buffer_LMN = gradient_LMN.lerp(buffer_LMN, momentum)
        update_LMN = orthogonalise(
            buffer_LMN, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        if group["weight_decay"]:
            torch._foreach_mul_(list(params), 1 - lr * group["weight_decay"] * good)
        size = lr * _size(group["adjust_lr_fn"], params[0].shape)
        torch._foreach_add_(list(params), list(update_LMN.to(params[0].dtype) * (-size * good)))

    def _step_sharded(self) -> None:
        """torch's own step, which can handle sharded matrices, undone if it should be skipped."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        # There is room for a copy of the weights: the activations, far larger, are freed by now.
        before = [local_shard(p).clone() for p in params]
        none = torch.zeros((), device=before[0].device)
        bad = (none if self.found_inf is None else self.found_inf) != 0
        for p in params:
            assert p.grad is not None
            grad = local_shard(p.grad)
            if self.grad_scale is not None:
                grad /= self.grad_scale
            if "momentum_buffer" in self.state[p]:
                grad.copy_(torch.where(bad, local_shard(self.state[p]["momentum_buffer"]), grad))
            else:
                grad.masked_fill_(bad, 0.0)
        super().step()  # type: ignore[no-untyped-call]
        for p, old in zip(params, before, strict=True):
            local_shard(p).copy_(torch.where(bad, old, local_shard(p)))


def orthogonalise(
    matrices_LMN: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Each matrix with its singular values moved towards 1: Newton-Schulz.

    In bfloat16, as torch's, but in float32 on a CPU: few have units for bfloat16, and the others
    take twenty times as long for it.
    """
    a, b, c = coefficients
    x = matrices_LMN.float() if matrices_LMN.device.type == "cpu" else matrices_LMN.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.flatten(1).norm(dim=1).clamp(min=eps).view(-1, 1, 1)
    for _ in range(steps):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x.mT if is_tall else x


def _size(rule: str | None, shape: torch.Size) -> float:
    """torch's factor of the learning rate for a matrix of this shape."""
    rows, columns = shape
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
