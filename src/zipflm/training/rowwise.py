"""Optimizers for tables with sparse gradients: an update costs the rows it touches.

They compute what `NesterovMomentum` and `torch.optim.AdamW` compute, for rows with a gradient. All
other rows stay as they are, weights and state, as with `torch.optim.SparseAdam`: their momentum
waits, it does not decay and does not move them, and weight decay spares them. Bias correction
counts all updates, whichever rows they touched. A row whose gradient is 0 throughout counts as one
without a gradient.

As with torch's fused optimizers, two scalar tensors on the device may be set: gradients are divided
by `grad_scale`, and if `found_inf` is 1, nothing changes. Nothing waits for the device.

Shapes: N rows, E width of a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zipflm.training.touched_rows import added_up, touched


class _Rows:
    """Rows of tensors that change together, or stay."""

    def __init__(self, rows_N: Tensor, stays_N1: Tensor) -> None:
        self._rows_N, self._stays_N1 = rows_N, stays_N1

    def of(self, table: Tensor) -> Tensor:
        return table[self._rows_N]

    def write(self, table: Tensor, old_NE: Tensor, new_NE: Tensor) -> None:
        table[self._rows_N] = torch.where(self._stays_N1, old_NE, new_NE)


class _Rowwise(torch.optim.Optimizer, ABC):
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the rows of every parameter that its gradient, a sparse tensor, touches."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._step_table(table, group)

    def _step_table(self, table: Tensor, group: dict[str, Any]) -> None:
        assert table.grad is not None
        rows_N, grads_NE = touched(added_up(table.grad))
        stays_N1 = (grads_NE == 0).all(dim=1, keepdim=True)
        if self.found_inf is not None:
            stays_N1 = stays_N1 | (self.found_inf != 0)
        if self.grad_scale is not None:
            grads_NE = grads_NE / self.grad_scale
        self._step_rows(table, _Rows(rows_N, stays_N1), grads_NE, group)

    @abstractmethod
    def _step_rows(
        self, table: Tensor, rows: _Rows, grads_NE: Tensor, group: dict[str, Any]
    ) -> None:
        """Change those rows of the table and of its state."""


class RowwiseNesterov(_Rowwise):
    """`NesterovMomentum` for the rows that a sparse gradient touches."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _step_rows(
        self, table: Tensor, rows: _Rows, grads_NE: Tensor, group: dict[str, Any]
    ) -> None:
        state, mu, lr = self.state[table], group["momentum"], group["lr"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(table)
        weights_NE, buffer_NE = rows.of(table), rows.of(state["momentum_buffer"])
        moving_NE = mu * buffer_NE + grads_NE
        decayed_NE = weights_NE * (1 - lr * group["weight_decay"])
        rows.write(table, weights_NE, decayed_NE - lr * (grads_NE + mu * moving_NE))
        rows.write(state["momentum_buffer"], buffer_NE, moving_NE)


class RowwiseAdamW(_Rowwise):
    """`torch.optim.AdamW` for the rows that a sparse gradient touches."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _step_rows(
        self, table: Tensor, rows: _Rows, grads_NE: Tensor, group: dict[str, Any]
    ) -> None:
        state, lr = self.state[table], group["lr"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=table.device)
            state["exp_avg"] = torch.zeros_like(table)
            state["exp_avg_sq"] = torch.zeros_like(table)
        state["step"] += 1 if self.found_inf is None else 1 - self.found_inf
        beta1, beta2 = group["betas"]
        weights_NE = rows.of(table)
        mean_NE, square_NE = rows.of(state["exp_avg"]), rows.of(state["exp_avg_sq"])
        new_mean_NE = mean_NE.lerp(grads_NE, 1 - beta1)
        new_square_NE = beta2 * square_NE + (1 - beta2) * grads_NE.square()
        size = lr / (1 - beta1 ** state["step"])
        root_NE = new_square_NE.sqrt() / (1 - beta2 ** state["step"]).sqrt() + group["eps"]
        decayed_NE = weights_NE * (1 - lr * group["weight_decay"])
        rows.write(table, weights_NE, decayed_NE - size * new_mean_NE / root_NE)
        rows.write(state["exp_avg"], mean_NE, new_mean_NE)
        rows.write(state["exp_avg_sq"], square_NE, new_square_NE)
