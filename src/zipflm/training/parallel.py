"""A model trained by several processes: DDP, FSDP2, and parameters filled after they are sharded.

No process ever holds more than its own shards and one whole parameter, the one whose first values
it draws; of a checkpoint it reads only what it keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal

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

from zipflm.config import Tie
from zipflm.model.inputs import sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision
from zipflm.model.sharded_tables import TableShards, shard_tables
from zipflm.runs.load import Part, Values
from zipflm.training.distributed import Process


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give what is on the meta device memory without values; everything else is moved."""
    known = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        if name in known:
            buffer.copy_(known[name])


@torch.no_grad()
def fill(model: nn.Module, values: Values) -> None:
    """Give every parameter, or this process's shard of it, its values."""
    for name, param in model.named_parameters():
        local_shard(param).copy_(values(name, part_here(param)))


def local_shard(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, or all of a tensor that is not sharded.

    Element-wise work can be done on the parts, which saves dispatching through the sharded type.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_here(tensor: Tensor) -> Part:
    """Which part of the whole tensor `local_shard` is; empty slices if there is none for us."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, starts = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def like_shard(part: Tensor, other: Tensor) -> Tensor:
    """A tensor laid out as `other` is, of which `part` is this process's shard."""
    local = local_shard(other)
    part = part.to(local.device)
    if not isinstance(other, DTensor):
        return part
    return DTensor.from_local(
        part,
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=other.shape,
        stride=other.stride(),
    )


Parallel = Literal["ddp", "fsdp"]
Tables = Literal["replicated", "sharded"]


def shards(process: Process, parallel: Parallel) -> bool:
    """Whether the processes share one model among them, instead of having a copy each."""
    return process.world_size > 1 and parallel == "fsdp"


def share_tables(model: LanguageModel, process: Process, tables: Tables) -> list[str]:
    """Leave this process its own rows of the model's tables, if they are to be sharded and there is
    somebody to share them with; the names of those of which it has a part from now on."""
    if process.world_size == 1 or tables == "replicated":
        return []
    return shard_tables(model, TableShards(_mesh(process)))


def wrap(
    scorer: nn.Module,
    model: LanguageModel,
    process: Process,
    parallel: Parallel,
    policy: MixedPrecisionPolicy,
    fill: Callable[[], None],
    tables: Sequence[str] = (),
) -> nn.Module:
    """`scorer`, which scores with `model`, on its device and in step with the other processes.

    `fill` gives the model memory and values: after it was sharded, so that there never is a whole
    one, and before copies are compared. `policy` is FSDP's. `tables` of the model are shared in
    another way (`share_tables`), so nobody else touches them.
    """
    if shards(process, parallel):
        _shard(scorer, model, process, policy, {model.get_parameter(name) for name in tables})
    fill()
    if process.world_size == 1 or shards(process, parallel):
        return scorer
    # DDP knows of sparse gradients in torch's own layers only: see `average_rows`.
    _hide({*(model.get_parameter(name) for name in tables), *sparse_tables(model)}, scorer)
    ids = [process.device.index] if process.device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`; 2.11 knows only this name. Our buffers are
        # constants, such as the spelling of every word, too large to send at every step.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            scorer, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )


def _mesh(process: Process) -> DeviceMesh:
    """All processes in a row."""
    return init_device_mesh(process.device.type, (process.world_size,))


def _hide(params: set[nn.Parameter], scorer: nn.Module) -> None:
    """Have DDP leave these alone."""
    names = [name for name, param in scorer.named_parameters() if param in params]
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(scorer, names)  # type: ignore[no-untyped-call]


def _shard(
    scorer: nn.Module,
    model: LanguageModel,
    process: Process,
    policy: MixedPrecisionPolicy,
    tables: set[nn.Parameter],
) -> None:
    """Shard every layer of the decoder by itself, the tables by themselves, then what is left;
    `tables` are sharded already, and the rest of their layers is small."""
    mesh = _mesh(process)
    # FSDP refuses a weight without a number, which the classes of a softmax without tails are.
    empty = {param for param in model.parameters() if not param.numel()}
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if not tables:
        _shard_tables(model, mesh, policy, empty)
    fully_shard(scorer, mesh=mesh, mp_policy=policy, ignored_params=tables | empty)


def _shard_tables(
    model: LanguageModel, mesh: DeviceMesh, policy: MixedPrecisionPolicy, empty: set[nn.Parameter]
) -> None:
    """Have FSDP shard the layers that have the tables."""
    # The backward pass begins with the output layer: its tables stay until then. Tied ones are
    # the input layer's, so that both layers are one unit, gathered once.
    if model.config.tie == Tie.NONE:
        fully_shard(model.input, mesh=mesh, mp_policy=policy)
        units: nn.Module | list[nn.Module] = model.output
    else:
        units = [model.input, model.output]
    fully_shard(
        units, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=empty
    )
    # It is asked for these, never for a forward.
    for method in ("nll", "nll_sum"):
        register_fsdp_forward_method(model.output, method)


def sharded_precision(precision: Precision, accumulates: bool) -> MixedPrecisionPolicy:
    """How FSDP exchanges weights and gradients; the weights that the optimizer changes, and its
    state, are float32 in any case.

    Autocast goes on deciding in which type each operation computes. It would round the weights of
    every product to bfloat16, so they may as well travel like that. Gradients travel like that
    too, unless those of several batches are accumulated first: FSDP accumulates in the type in
    which it exchanges, and small addends would be lost in bfloat16. float16 has too narrow a range
    for sums of gradients over processes: there only autocast is used.
    """
    if precision != "bfloat16":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32 if accumulates else torch.bfloat16,
        cast_forward_inputs=False,
    )


def is_sharded(scorer: nn.Module) -> bool:
    """Whether this is a scorer that `wrap` has sharded."""
    return isinstance(scorer, FSDPModule)


@contextmanager
def accumulating(scorer: nn.Module, is_last: bool) -> Iterator[None]:
    """While a micro-batch runs: exchange gradients after the last one of an update only."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(is_last)
        yield
        return
    waits = isinstance(scorer, DistributedDataParallel) and not is_last
    with scorer.no_sync() if waits else nullcontext():  # type: ignore[operator]
        yield
