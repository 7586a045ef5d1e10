"""Train models with several processes: DDP, FSDP2, and initialization after sharding.

Of sharded parameters, a process holds only its own shards and, during initialization, one full
parameter at a time. From a checkpoint it reads only its shards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from zipflm.config import Tie, TrainingConfig
from zipflm.distributed.processes import Process
from zipflm.model.inputs import sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision
from zipflm.model.sharded_tables import TableShards, shard_tables
from zipflm.runs.load import first_values


def allocate(model: nn.Module, device: torch.device) -> None:
    """Allocate a model on the device. Only buffers that are not on the meta device keep their
    values; parameters are uninitialized."""
    known = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        if name in known:
            buffer.copy_(known[name])


@torch.no_grad()
def fill(model: LanguageModel, seed: int) -> None:
    """Initialize every parameter, or the shard of this process."""
    for name, values in first_values(model, seed):
        param = model.get_parameter(name)
        local_shard(param).copy_(values[local_slices(param)])


def local_shard(tensor: Tensor) -> Tensor:
    """Return the shard of this process, or the tensor itself if it is not sharded.

    Element-wise operations on shards avoid the dispatch overhead of DTensor.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_slices(tensor: Tensor) -> tuple[slice, ...]:
    """Return the slices of the full tensor that `local_shard` holds."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, starts = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def should_shard(process: Process, training: TrainingConfig) -> bool:
    """Return True if FSDP shards the model over processes."""
    return process.world_size > 1 and training.parallel == "fsdp"


def shard_tables_if_configured(
    model: LanguageModel, process: Process, training: TrainingConfig
) -> list[str]:
    """Shard the tables over several processes, if configured. Return the names of the sharded
    tables."""
    if process.world_size == 1 or training.tables == "replicated":
        return []
    return shard_tables(model, TableShards(_mesh(process)))


def wrap(
    scorer: nn.Module,
    model: LanguageModel,
    process: Process,
    training: TrainingConfig,
    is_accumulated: bool,
    fill: Callable[[], None],
    sharded_tables: Sequence[str],
) -> nn.Module:
    """Move `scorer`, which contains `model`, to the device, and wrap it in DDP or FSDP if there are
    several processes.

    `fill` moves the model, or allocates and initializes it, after sharding. DDP and FSDP ignore
    `sharded_tables`.
    """
    tables = {model.get_parameter(name) for name in sharded_tables}
    if should_shard(process, training):
        policy = sharded_precision(training.dtype, is_accumulated)
        _shard(scorer, model, _mesh(process), policy, tables)
    fill()
    if process.world_size == 1 or should_shard(process, training):
        return scorer
    # DDP supports sparse gradients only in torch layers; `step` averages ours.
    ignored = tables | {*sparse_tables(model)}
    names = [name for name, param in scorer.named_parameters() if param in ignored]
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(scorer, names)  # type: ignore[no-untyped-call]
    ids = [process.device.index] if process.device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`, which 2.11 needs. Our buffers are constants, such
        # as the bytes of every word, and too large to send at every step.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            scorer, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )


def _mesh(process: Process) -> DeviceMesh:
    return init_device_mesh(process.device.type, (process.world_size,))


def _shard(
    scorer: nn.Module,
    model: LanguageModel,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    tables: set[nn.Parameter],
) -> None:
    """Shard the layers of the decoder, the input and output layers (unless their tables are already
    sharded) and then the rest, as separate FSDP units."""
    # FSDP rejects empty weights, such as the clusters of a softmax without tails.
    empty = {param for param in model.parameters() if not param.numel()}
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if not tables:
        _shard_tables(model, mesh, policy, empty)
    fully_shard(scorer, mesh=mesh, mp_policy=policy, ignored_params=tables | empty)


def _shard_tables(
    model: LanguageModel, mesh: DeviceMesh, policy: MixedPrecisionPolicy, empty: set[nn.Parameter]
) -> None:
    # The backward pass starts with the output layer, so its tables stay gathered. Tied tables
    # belong to the input layer, so both layers form one unit and are gathered once.
    if model.config.tie == Tie.NONE:
        fully_shard(model.input, mesh=mesh, mp_policy=policy)
        units: nn.Module | list[nn.Module] = model.output
    else:
        units = [model.input, model.output]
    fully_shard(
        units, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=empty
    )
    # Training and validation call the output layer only through these methods.
    for method in ("nll", "nll_sum"):
        register_fsdp_forward_method(model.output, method)


def sharded_precision(precision: Precision, is_accumulated: bool) -> MixedPrecisionPolicy:
    """Return the dtypes in which FSDP exchanges weights and gradients. Master weights are float32.

    Autocast rounds the weights of every product to bfloat16 anyway, so they are sent as bfloat16.
    So are gradients, unless several batches are accumulated: FSDP accumulates in the dtype it
    sends, and bfloat16 would lose small addends. The range of float16 is too narrow for sums of
    gradients over processes, so float16 only uses autocast.
    """
    if precision != "bfloat16":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32 if is_accumulated else torch.bfloat16,
        cast_forward_inputs=False,
    )


@contextmanager
def accumulating(scorer: nn.Module, is_last: bool) -> Iterator[None]:
    """Exchange gradients only after the last micro-batch of an update."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(is_last)
        yield
        return
    should_delay = isinstance(scorer, DistributedDataParallel) and not is_last
    with scorer.no_sync() if should_delay else nullcontext():  # type: ignore[operator]
        yield
