"""Checkpoints of several processes: each saves its own shards, in the background.

Saving has two parts. A process first copies what it is to save to the host's memory, which takes as
long as the copy; then training goes on, and the files are written from that copy. The processes
talk about it through a group of their own: training may be using the other one at any time. At most
one checkpoint is being saved, so there is at most one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from zipflm.runs.checkpoint import Contents
from zipflm.runs.sharded import ShardWriter, spread
from zipflm.training.distributed import Process
from zipflm.training.filling import local_shard
from zipflm.training.memory import is_out_of_memory

_LONGEST = timedelta(days=1)
"""That the fastest process waits for the slowest to have written; a disk may be slow, and whoever
has failed says so at once."""


@dataclass
class _Pending:
    writer: ShardWriter
    done: Future[Any]


class BackgroundSaving:
    """Saves one checkpoint after the other; every process must make the same calls."""

    def __init__(self, process: Process) -> None:
        self._process = process
        group = dist.new_group(backend="gloo", timeout=_LONGEST)
        self._group = cast(dist.ProcessGroup, group)  # of which every process is a member
        self._pending: _Pending | None = None

    def start(self, root: Path, contents: Contents) -> None:
        """Begin to save. Tensors may be sharded, and are free to change once this returns; plain
        ones are the same in all processes. What was started before must have ended."""
        assert self._pending is None
        tensors = contents.weights | contents.optimizer
        writer = ShardWriter(root, contents, contents.weights, contents.optimizer)
        own = own_part(tensors, self._process)
        try:
            done = async_save(own, storage_writer=writer, process_group=self._group)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = sum(local_shard(tensor).nbytes for tensor in own.values()) / 1e9
            raise ValueError(
                f"update {contents.state.update}: no room in this machine's memory for a copy of "
                f"the {size:.1f} GB that process {self._process.rank} is to save; start fewer "
                "processes on a machine, or more of them with training.parallel=fsdp"
            ) from None
        assert isinstance(done, Future)
        self._pending = _Pending(writer, done)

    @property
    def is_done(self) -> bool:
        """Whether nothing is being saved any more, as far as this process knows."""
        return self._pending is None or self._pending.done.done()

    def wait(self) -> OSError | None:
        """Until what was started has ended: why it failed, the same in all processes, or None."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        error = pending.done.exception()
        if error is None:
            return None
        if self._process.is_first:
            pending.writer.clear()
        if isinstance(error, CheckpointException):  # what happened in each process that failed
            error = error.failures[min(error.failures)][0]
        return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Wait for what is being saved, and let the other processes go."""
        self.wait()
        dist.destroy_process_group(self._group)


def own_part(tensors: Mapping[str, Tensor], process: Process) -> dict[str, Tensor]:
    """What this process saves: its shard of what is sharded, and some of what all of them have."""
    plain = {name: each for name, each in tensors.items() if not isinstance(each, DTensor)}
    owners = spread(plain, process.world_size)
    return {
        name: tensor
        for name, tensor in tensors.items()
        if owners.get(name, process.rank) == process.rank
    }
