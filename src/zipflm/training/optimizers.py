"""Which optimizer changes which weight, and at which learning rate.

Every optimizer here can be told by the device to skip an update, through `found_inf`, and what to
divide its gradients by, through `grad_scale`: scalar tensors there, which is how torch's gradient
scaler tells fused optimizers. Were the host to decide, every update would have to wait until its
gradients are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zipflm.config import AdamW, Muon, Nesterov, OptimizerConfig
from zipflm.model.inputs import sparse_tables
from zipflm.training.muon import StackedMuon
from zipflm.training.nesterov import NesterovMomentum
from zipflm.training.rowwise import RowwiseAdamW, RowwiseNesterov

if TYPE_CHECKING:
    from zipflm.runs.stored_tensors import StoredTensors

_STATE = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
"""What the optimizers keep for a weight."""

TABLES = ("table", "embeddings", "clusters", "bytes", "symbols")
"""Parts of names of weights that have one row per word, byte or class."""


def build(config: OptimizerConfig, model: nn.Module) -> list[Optimizer]:
    """The optimizers of a model. The schedule multiplies each group's `base_lr`.

    Tables with sparse gradients have one of their own, the last.
    """
    kinds = parameter_kinds(model)
    match config:
        case Nesterov():
            sparse = kinds.pop("sparse tables")
            dense = [param for params in kinds.values() for param in params]
            optimizers = [_nesterov(NesterovMomentum, config, dense)]
            return optimizers + ([_nesterov(RowwiseNesterov, config, sparse)] if sparse else [])
        case Muon():  # before AdamW, whose subclass it is
            return [_muon(config, kinds.pop("matrices")), *_adamw(config, kinds)]
        case AdamW():
            return _adamw(config, kinds)
        case _:
            assert_never(config)


def _nesterov(
    kind: type[NesterovMomentum] | type[RowwiseNesterov],
    config: Nesterov,
    params: list[nn.Parameter],
) -> Optimizer:
    group = {"params": params, "base_lr": 1.0}
    return kind([group], momentum=config.momentum, weight_decay=config.weight_decay)


def _muon(config: Muon, matrices: list[nn.Parameter]) -> Optimizer:
    return StackedMuon(
        [{"params": matrices, "base_lr": config.matrix_lr}],
        lr=config.matrix_lr,
        momentum=config.momentum,
        weight_decay=config.matrix_weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )


def _adamw(config: AdamW, kinds: Mapping[str, list[nn.Parameter]]) -> list[Optimizer]:
    sparse = kinds.get("sparse tables")
    # An operator on many weights takes either sharded ones or whole ones.
    groups = [
        _adamw_group(config, kind, alike)
        for kind, params in kinds.items()
        for is_sharded in (False, True)
        if kind != "sparse tables"
        and (alike := [p for p in params if isinstance(p, DTensor) == is_sharded])
    ]
    betas, eps = (config.beta1, config.beta2), config.eps
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, betas=betas, eps=eps, fused=True)]
    if sparse:
        group = _adamw_group(config, "sparse tables", sparse)
        optimizers.append(RowwiseAdamW([group], betas=betas, eps=eps))
    return optimizers


def _adamw_group(config: AdamW, kind: str, params: list[nn.Parameter]) -> dict[str, Any]:
    return {
        "params": params,
        "base_lr": config.table_lr if kind in ("tables", "sparse tables") else config.lr,
        "weight_decay": 0.0 if kind == "vectors" else config.weight_decay,
    }


def parameter_kinds(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Every parameter once: matrices of the decoder's layers, tables, those of them with sparse
    gradients, projections, vectors."""
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
    """Every group's learning rate becomes `factor` times its `base_lr`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = factor * group["base_lr"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def prepare_recording(optimizers: Sequence[Optimizer]) -> None:
    """Keep learning rates on the device, so that a recorded step reads what they are by then."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = torch.full((), float(group["lr"]), device=group["params"][0].device)
            if "capturable" in group:
                group["capturable"] = True


def step(optimizers: Sequence[Optimizer], divisor: Tensor, bad: Tensor) -> None:
    """One update with the gradients divided by `divisor`, or none if `bad`; clears the gradients.

    Both are scalars on the device.
    """
    for optimizer in optimizers:
        optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
        optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def state_tensors(optimizers: Sequence[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The state of all optimizers, keyed `weight/state`, sharded where the weights are.

    These are the optimizers' own tensors: save them before the next update.
    """
    owners = _owners(optimizers)
    return {
        f"{name}/{key}": value
        for name, param in model.named_parameters()
        for key, value in owners[param].state[param].items()
    }


def load_tensors(optimizers: Sequence[Optimizer], model: nn.Module, stored: StoredTensors) -> None:
    """Restore what `state_tensors` returned, of sharded weights only what belongs to our shards."""
    owners, params = _owners(optimizers), dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for place, shape in stored.shapes.items():
        name, _, key = place.rpartition("/")
        if key not in _STATE:
            raise ValueError(
                f"optimizer state {place}: unknown; the checkpoint is of another version of this "
                "package, with which the run can be resumed; here it can be used and evaluated"
            )
        param = params[name]
        if shape == tuple(param.shape):
            tensors[place] = torch.zeros_like(param)
        else:  # a count
            tensors[place] = torch.zeros(shape, device=param.device)
        owners[param].state[param][key] = tensors[place]
    stored.load_into(tensors)


def _owners(optimizers: Sequence[Optimizer]) -> dict[Tensor, Optimizer]:
    return {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
