"""Checkpoints of several processes: each saves its own shards, in the background.

`torch.distributed.checkpoint` first copies what a process has to save to the host's memory; then
training continues, and the files are written from that copy. The processes use a group of their
own for it, because training may use the other one at any time. At most one checkpoint is being
saved, so there is at most one copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from zipflm.runs.checkpoint import Contents
from zipflm.runs.sharded import ShardWriter
from zipflm.training.distributed import Process

_LONGEST = timedelta(days=1)
"""Time for the slowest process to write its files; one that fails reports it at once."""


class BackgroundSaving:
    """Saves one checkpoint after the other; every process must make the same calls."""

    def __init__(self, process: Process) -> None:
        self._process = process
        group = dist.new_group(backend="gloo", timeout=_LONGEST)
        self._group = cast(dist.ProcessGroup, group)  # every process is a member
        self._saving: tuple[ShardWriter, Future[Any]] | None = None

    def start(self, root: Path, contents: Contents) -> None:
        """Begin to save. Tensors may be sharded, and may change once this returns; plain ones are
        the same in all processes. The save before must have ended."""
        assert self._saving is None
        own = own_part(contents.weights | contents.optimizer, self._process)
        writer = ShardWriter(root, contents)
        done = async_save(own, storage_writer=writer, process_group=self._group)
        assert isinstance(done, Future)
        self._saving = writer, done

    @property
    def is_done(self) -> bool:
        """Whether nothing is being saved any more, as far as this process knows."""
        return self._saving is None or self._saving[1].done()

    def wait(self) -> OSError | None:
        """Wait for the save to end: why it failed, the same in all processes, or None."""
        if self._saving is None:
            return None
        (writer, done), self._saving = self._saving, None
        error = done.exception()
        if error is None:
            return None
        if self._process.is_first:
            shutil.rmtree(writer.unfinished, ignore_errors=True)
        if isinstance(error, CheckpointException):  # holds the error of each process that failed
            error = error.failures[min(error.failures)][0]
        return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Wait for the save to end, and leave the group."""
        self.wait()
        dist.destroy_process_group(self._group)


def own_part(tensors: Mapping[str, Tensor], process: Process) -> dict[str, Tensor]:
    """The tensors this process saves: all sharded ones, and its share of those that every process
    has, about as much for each."""
    plain = [name for name, each in tensors.items() if not isinstance(each, DTensor)]
    by_size = sorted(plain, key=lambda name: (-tensors[name].nbytes, name))
    others = {*plain} - {*by_size[process.rank :: process.world_size]}
    return {name: each for name, each in tensors.items() if name not in others}
