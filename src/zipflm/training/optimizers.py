"""Optimizers and their parameter groups.

The optimizers skip an update if `found_inf` is 1 and divide gradients by `grad_scale`. Both are
scalar tensors on the device, as in the fused optimizers of torch, so the host does not wait for the
gradients. Only `SparseAdam`, for tables with sparse gradients, waits.

Shapes: L matrices with M rows and N columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer, SparseAdam
from torch.optim.sgd import sgd

from zipflm.config import AdamW, Muon, Nesterov, OptimizerConfig
from zipflm.model.inputs import sparse_tables
from zipflm.training.parallel import local_shard, local_slices

if TYPE_CHECKING:
    from zipflm.runs.sharded import StoredTensors

TABLES = ("table", "embeddings", "clusters", "bytes", "symbols")
"""Name parts of weights with one row per id (`table`, `embeddings`), per tail band of the adaptive
softmax (`clusters`), per byte, or per special token of a character CNN (`symbols`)."""


class NesterovMomentum(Optimizer):
    """Nesterov accelerated gradient, the paper's optimizer (section 4.5).

    With momentum mu, learning rate lr and gradient g, the authors' code keeps a buffer v in units
    of the weights, and rescales it when the learning rate changes:

        r = lr / previous lr;   p += mu^2 r v - (1 + mu) lr g;   v = mu r v - lr g

    Here the buffer is b = -v / lr, in units of the gradient. The same updates then do not need the
    previous learning rate, which can be 0 or belong to a skipped update:

        b = mu b + g;   p -= lr (g + mu b)

    `torch.optim.SGD` computes the same updates, so its fused operator is used. It reads and writes
    every weight once and is five times as fast as separate operations.
    """

    grad_scale: Tensor = torch.ones(())
    found_inf: Tensor = torch.zeros(())

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. This can overwrite the gradients."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(params, group["lr"], group["momentum"], group["weight_decay"])

    def _step_group(self, params: list[Tensor], lr: float, mu: float, decay: float) -> None:
        weights = [local_shard(p) for p in params]
        if decay:
            # Decay is decoupled, as in the authors' code; torch would add it to the gradient.
            torch._foreach_mul_(weights, 1 - lr * decay * (1 - self.found_inf))
        sgd(
            weights,
            [local_shard(p.grad) for p in params if p.grad is not None],
            [local_shard(_momentum_buffer(self, p)) for p in params],
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


class StackedMuon(torch.optim.Muon):
    """`torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, for all matrices of the same shape
    together.

    torch works on one matrix at a time. With six or more matrices per layer, launching hundreds of
    small operations takes longer than the GPU needs to run them. The results agree with torch's up
    to rounding.
    """

    grad_scale: Tensor = torch.ones(())
    found_inf: Tensor = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[object, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    # Full copies of all sharded matrices might not fit in memory.
                    stacks.setdefault(p if isinstance(p, DTensor) else p.shape, []).append(p)
            for params in stacks.values():
                self._step_stack(params, group)

    def _step_stack(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of the same shape, or one sharded matrix."""
        momentum: float = group["momentum"]
        weights = [local_shard(p) for p in params]
        buffers = [local_shard(_momentum_buffer(self, p)) for p in params]
        buffer_LMN = torch.stack(buffers)
        gradient_LMN = torch.stack([local_shard(p.grad) for p in params if p.grad is not None])
        gradient_LMN = gradient_LMN / self.grad_scale
        # To skip the update, use the buffer as the gradient, which leaves the buffer unchanged.
        gradient_LMN = torch.where(self.found_inf != 0, buffer_LMN, gradient_LMN)
        buffer_LMN.lerp_(gradient_LMN, 1 - momentum)
        torch._foreach_copy_(buffers, list(buffer_LMN))
        direction_LMN = gradient_LMN.lerp(buffer_LMN, momentum).to(_iteration_dtype(buffer_LMN))
        first = params[0]
        if isinstance(first, DTensor):
            # Only the iteration needs the full matrix. Gathering it in every process takes less
            # time than exchanging parts for each product, and rounds like a single process.
            whole = DTensor.from_local(
                direction_LMN[0],
                first.device_mesh,
                first.placements,
                run_check=False,
                shape=first.shape,
                stride=first.stride(),
            )
            direction_LMN = whole.full_tensor().unsqueeze(0)
        update_LMN = orthogonalize(
            direction_LMN, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )[(slice(None), *local_slices(first))]
        lr, good = group["lr"], 1 - self.found_inf
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"] * good)
        matrix_lr = lr * (0.2 * math.sqrt(max(first.shape)))
        torch._foreach_add_(weights, list(update_LMN.to(weights[0].dtype) * (-matrix_lr * good)))


def _momentum_buffer(optimizer: Optimizer, p: Tensor) -> Tensor:
    state: dict[str, Tensor] = optimizer.state[p]
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(p)
    return state["momentum_buffer"]


def _iteration_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of the Newton-Schulz iteration: bfloat16 as in torch, but float32 on a CPU,
    where bfloat16 can take twenty times as long."""
    return torch.float32 if tensor.device.type == "cpu" else torch.bfloat16


def orthogonalize(
    matrices_LMN: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1 (Newton-Schulz)."""
    a, b, c = coefficients
    x = matrices_LMN.to(_iteration_dtype(matrices_LMN))
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.flatten(1).norm(dim=1).clamp(min=eps).view(-1, 1, 1)
    for _ in range(steps):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x.mT if is_tall else x


def build(config: OptimizerConfig, model: nn.Module) -> list[Optimizer]:
    """Create the optimizers. The schedule multiplies the `base_lr` of each group.

    Tables with sparse gradients have a separate optimizer, which is the last one.
    """
    kinds = parameter_kinds(model)
    sparse = kinds.pop("sparse tables")
    if sparse and isinstance(config, Nesterov):
        raise ValueError(
            "input.sparse=True: sparse gradients need training.optimizer=AdamW or Muon; change "
            "training.optimizer, or omit input.sparse"
        )
    match config:
        case Nesterov():
            all_params = [param for params in kinds.values() for param in params]
            group = {"params": all_params, "base_lr": 1.0}
            momentum, decay = config.momentum, config.weight_decay
            return [NesterovMomentum([group], momentum=momentum, weight_decay=decay)]
        case Muon():  # before AdamW, its base class
            matrices = kinds.pop("matrices")
            muon = [_muon(config, matrices)] if matrices else []
            return [*muon, *_adamw(config, kinds, sparse)]
        case AdamW():
            return _adamw(config, kinds, sparse)
        case _:
            assert_never(config)


def _muon(config: Muon, matrices: list[nn.Parameter]) -> Optimizer:
    return StackedMuon(
        [{"params": matrices, "base_lr": config.matrix_lr}],
        lr=config.matrix_lr,
        momentum=config.momentum,
        weight_decay=config.matrix_weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )


def _adamw(
    config: AdamW, kinds: Mapping[str, list[nn.Parameter]], sparse: list[nn.Parameter]
) -> list[Optimizer]:
    # A fused operator needs weights that are either all sharded or all unsharded.
    groups = [
        {
            "params": group_params,
            "base_lr": config.table_lr if kind == "tables" else config.lr,
            "weight_decay": 0.0 if kind == "vectors" else config.weight_decay,
        }
        for kind, params in kinds.items()
        for is_sharded in (False, True)
        if (group_params := [p for p in params if isinstance(p, DTensor) == is_sharded])
    ]
    betas, eps = (config.beta1, config.beta2), config.eps
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, betas=betas, eps=eps, fused=True)]
    if sparse:
        group = {"params": sparse, "base_lr": config.table_lr}
        optimizers.append(SparseAdam([group], betas=betas, eps=eps))
    return optimizers


def parameter_kinds(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group all parameters: matrices of the decoder layers, tables, tables with sparse gradients,
    projections (all other matrices, and convolutions), and vectors (including scalars)."""
    kinds: dict[str, list[nn.Parameter]] = {
        "matrices": [],
        "tables": [],
        "sparse tables": [],
        "projections": [],
        "vectors": [],
    }
    sparse = set(sparse_tables(model))
    for name, param in model.named_parameters():
        parts = name.split(".")
        if param in sparse:
            kinds["sparse tables"].append(param)
        elif param.ndim < 2:
            kinds["vectors"].append(param)
        elif any(part in TABLES for part in parts):
            kinds["tables"].append(param)
        elif "layers" in parts and param.ndim == 2:
            kinds["matrices"].append(param)
        else:
            kinds["projections"].append(param)
    return kinds


def set_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Set the learning rate of each group to `factor` times its `base_lr`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = factor * group["base_lr"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def prepare_recording(optimizers: Sequence[Optimizer]) -> None:
    """Move learning rates to the device, where a recorded step reads their current values."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = torch.full((), float(group["lr"]), device=group["params"][0].device)
            if "capturable" in group:
                group["capturable"] = True


def step(optimizers: Sequence[Optimizer], divisor: Tensor, bad: Tensor) -> None:
    """Update with gradients divided by `divisor`, or skip the update if `bad` is True. Then clear
    the gradients.

    Both arguments are scalar tensors on the device.
    """
    for optimizer in optimizers:
        if isinstance(optimizer, SparseAdam):
            _step_sparse(optimizer, divisor, bad)
        else:
            optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _step_sparse(optimizer: SparseAdam, divisor: Tensor, bad: Tensor) -> None:
    if bad:
        return
    for group in optimizer.param_groups:
        for table in group["params"]:
            if table.grad is not None:
                table.grad = table.grad / divisor.float()
    optimizer.step()  # type: ignore[no-untyped-call]


def state_tensors(optimizers: Sequence[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """Return optimizer states by `parameter name/state name`. They are sharded like the weights.

    The tensors are not copied: save them before the next update.
    """
    owners = _owners(optimizers)
    return {
        # SparseAdam counts steps in an int.
        f"{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(float(value))
        for name, param in model.named_parameters()
        for key, value in owners[param].state[param].items()
    }


def load_tensors(optimizers: Sequence[Optimizer], model: nn.Module, stored: StoredTensors) -> None:
    """Restore the result of `state_tensors`. For sharded weights, only local shards are read."""
    owners, params = _owners(optimizers), dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for full_name, shape in stored.shapes.items():
        name, _, key = full_name.rpartition("/")
        if name not in params:  # a decoder state (`step.CarriedState`)
            continue
        param = params[name]
        if shape == tuple(param.shape):
            tensors[full_name] = torch.zeros_like(param)
        else:  # a step count
            tensors[full_name] = torch.zeros(shape, device=param.device)
        owners[param].state[param][key] = tensors[full_name]
    stored.load_into(tensors)
    for optimizer in optimizers:
        if isinstance(optimizer, SparseAdam):
            for state in optimizer.state.values():
                state["step"] = int(state["step"])


def _owners(optimizers: Sequence[Optimizer]) -> dict[Tensor, Optimizer]:
    return {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
