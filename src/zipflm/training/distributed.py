"""One process or many, through torch's own engines only: DDP or FSDP2, NCCL or gloo.

Both engines average gradients over the processes. The loss here is a sum over tokens, divided by
their global number, so whoever uses the gradients multiplies by `world_size` (see `step`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from zipflm.evaluation.device import usable_device


@dataclass(frozen=True)
class Process:
    """This process among all of them, and its device."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@contextmanager
def started(device: str | None = None) -> Iterator[Process]:
    """Join the processes that `torchrun` started, or be the only one.

    Inside another `started` it is the same process and nothing is joined or left: a second group
    would find the first one's addresses in torchrun's store. `device` is `cpu`, `cuda` or `cuda:N`;
    by default a GPU where there is one.
    """
    place = torch.device(usable_device(device))
    # The environment is how torchrun tells a process its place; nothing else is read from it.
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and place.type == "cuda":
        if place.index is not None:
            raise ValueError(f"--device {device}: each process takes its own GPU; use cuda")
        place = torch.device(usable_device(f"cuda:{os.environ['LOCAL_RANK']}"))
    if place.index is not None and place.type == "cuda":
        torch.cuda.set_device(place)
    if world_size == 1:
        yield Process(0, 1, place)
        return
    if dist.is_initialized():
        yield Process(dist.get_rank(), world_size, place)
        return
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Process(dist.get_rank(), world_size, place)
    finally:
        dist.destroy_process_group()


def wrap(
    scorer: nn.Module,
    layers: nn.ModuleList,
    process: Process,
    parallel: Literal["ddp", "fsdp"],
    compile: Literal["no", "one shape", "any shape"],
) -> nn.Module:
    """`scorer` on the device, compiled if asked, and in step with its copies if there are any.

    `layers` are the parts that FSDP shards, gathers and compiles one by one. With `one shape` each
    new shape of a batch compiles anew, for that shape alone.
    """
    scorer.to(process.device)
    shards = process.world_size > 1 and parallel == "fsdp"
    if compile != "no":
        for part in layers if shards else [scorer]:
            # Left alone, a second block length would make torch compile for any length: slower.
            part.compile(dynamic=False if compile == "one shape" else None)
    if process.world_size == 1:
        return scorer
    if not shards:
        ids = [process.device.index] if process.device.type == "cuda" else None
        with warnings.catch_warnings():
            # torch 2.13 renames `broadcast_buffers`; 2.11 knows only this name. Our buffers are
            # constants, such as the spelling of every word, too large to send at every step.
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(
                scorer, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
            )
    mesh = init_device_mesh(process.device.type, (process.world_size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(scorer, mesh=mesh)
    return scorer


def is_sharded(scorer: nn.Module) -> bool:
    return isinstance(scorer, FSDPModule)


@contextmanager
def accumulating(scorer: nn.Module, is_last: bool) -> Iterator[None]:
    """Run a micro-batch; gradients are exchanged after the last one of an update only."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(is_last)
        yield
        return
    waits = isinstance(scorer, DistributedDataParallel) and not is_last
    with scorer.no_sync() if waits else nullcontext():  # type: ignore[operator]
        yield


def add_up(tensor: Tensor, process: Process) -> Tensor:
    """The sum over all processes, in place."""
    if process.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def wait_for_all(process: Process) -> None:
    if process.world_size > 1:
        dist.barrier()


def require_same(name: str, value: int | None, process: Process, remedy: str) -> None:
    """ValueError, in every process, if they do not all have the same value; waits for all.

    `value` is not negative.
    """
    if process.world_size == 1:
        return
    own = torch.tensor(-1 if value is None else value, device=process.device)
    gathered = [torch.empty_like(own) for _ in range(process.world_size)]
    dist.all_gather(gathered, own)
    values = [None if number < 0 else number for number in (int(each) for each in gathered)]
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ValueError(
                f"{name} is {values[0]} in process 0, but {other} in process {rank}; {remedy}"
            )


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded, on the CPU; every process must ask."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()


def placed_like(full: Tensor, other: Tensor) -> Tensor:
    """`full` on the device of `other`, and sharded as that is."""
    if isinstance(other, DTensor):
        full = full.to(other.device)
        return distribute_tensor(full, other.device_mesh, other.placements)
    return full.to(other.device)
