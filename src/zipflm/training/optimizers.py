"""Optimizers and their parameter groups.

The optimizers skip an update if `found_inf` is 1 and divide gradients by `grad_scale`. Both are
scalar tensors on the device, as in the fused optimizers of torch, so the host does not wait for the
gradients. Only `SparseAdam`, for tables with sparse gradients, waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer, SparseAdam

from zipflm.config import AdamW, Muon, Nesterov, OptimizerConfig
from zipflm.model.inputs import sparse_tables
from zipflm.training.carried_state import PREFIX
from zipflm.training.muon import StackedMuon
from zipflm.training.nesterov import NesterovMomentum

if TYPE_CHECKING:
    from zipflm.runs.sharded import StoredTensors

TABLES = ("table", "embeddings", "clusters", "bytes", "symbols")
"""Name parts of weights with one row per id (`table`, `embeddings`), per tail band of the adaptive
softmax (`clusters`), per byte, or per special token of a character CNN (`symbols`)."""


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
        if full_name.startswith(PREFIX):
            continue
        name, _, key = full_name.rpartition("/")
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
