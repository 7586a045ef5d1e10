"""Nesterov accelerated gradient, the paper's optimizer (section 4.5).

With momentum mu, learning rate lr and gradient g, the authors' code keeps a buffer v in units of
the weights, which it must rescale whenever the learning rate changes:

    r = lr / previous lr;   p += mu^2 r v - (1 + mu) lr g;   v = mu r v - lr g

Here the buffer is u = v / lr, in units of the gradient. The same updates then need no r, hence no
previous learning rate, which may be 0 or belong to an update that was skipped:

    u = mu u - g;   p += lr (mu u - g)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zipflm.training.distributed import local_shard


class NesterovMomentum(torch.optim.Optimizer):
    """Needs one gradient per step and never waits for the device.

    As with torch's fused optimizers, `found_inf` may be set to a scalar tensor on the device: if
    that is not 0, neither weights nor momentum change, whatever the gradients are.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; the gradients may be overwritten."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_group(self, params: list[Tensor], lr: float, mu: float, decay: float) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        weights = [local_shard(p) for p in params]
        momenta = [local_shard(self.state[p]["momentum"]) for p in params]
        grads = [local_shard(p.grad) for p in params if p.grad is not None]
        rate: float | Tensor = lr
        if self.found_inf is not None:
            # A scalar on the device decides: rate 0, momentum 1 and gradient 0 change nothing.
            bad = self.found_inf != 0
            rate = torch.where(bad, 0.0, lr)
            torch._foreach_mul_(momenta, torch.where(bad, 1.0, mu))
            for grad in grads:
                grad.masked_fill_(bad, 0.0)
        else:
            torch._foreach_mul_(momenta, mu)
        torch._foreach_sub_(momenta, grads)
        if decay:
            torch._foreach_mul_(weights, 1 - rate * decay)
        steps = torch._foreach_mul(momenta, mu)
        torch._foreach_sub_(steps, grads)
        torch._foreach_mul_(steps, rate)
        torch._foreach_add_(weights, steps)
