"""Nesterov accelerated gradient, the paper's optimizer (section 4.5).

With momentum mu, learning rate lr and gradient g, the authors' code keeps a buffer v in units of
the weights, and rescales it when the learning rate changes:

    r = lr / previous lr;   p += mu^2 r v - (1 + mu) lr g;   v = mu r v - lr g

Here the buffer is b = -v / lr, in units of the gradient. The same updates then do not need the
previous learning rate, which can be 0 or belong to a skipped update:

    b = mu b + g;   p -= lr (g + mu b)

`torch.optim.SGD` computes the same updates, so its fused operator is used. It reads and writes
every weight once and is five times as fast as separate operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from zipflm.training.parallel import local_shard


class NesterovMomentum(torch.optim.Optimizer):
    """Nesterov momentum that never waits for the device.

    It has the two attributes of torch's fused optimizers, which are scalar tensors on the device:
    gradients are divided by `grad_scale`, and if `found_inf` is 1, neither weights nor momentum
    change.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. This can overwrite the gradients."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_group(self, params: list[Tensor], lr: float, mu: float, decay: float) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        weights = [local_shard(p) for p in params]
        if decay:
            # Decay is decoupled, as in the authors' code; torch would add it to the gradient.
            good = 1.0 if self.found_inf is None else 1 - self.found_inf
            torch._foreach_mul_(weights, 1 - lr * decay * good)
        sgd(
            weights,
            [local_shard(p.grad) for p in params if p.grad is not None],
            [local_shard(self.state[p]["momentum_buffer"]) for p in params],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            weight_decay=0.0,
            momentum=mu,
            lr=lr,
            dampening=0.0,
            nesterov=True,
            maximize=False,
        )
