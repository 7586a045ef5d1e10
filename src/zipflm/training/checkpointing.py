"""Save checkpoints: directly in a single process, or in the background with several processes.

In the background, `torch.distributed.checkpoint` copies the state to host memory, and training
continues while the files are written. This uses a separate process group, because training uses the
default one at the same time. Only one checkpoint is saved at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from zipflm.distributed.processes import Process
from zipflm.runs.checkpoint import Contents, checkpoint_path, save
from zipflm.runs.records import TrainingState, Validation
from zipflm.runs.sharded import ShardWriter
from zipflm.training import optimizers
from zipflm.training.setup import Run

_TIMEOUT = timedelta(days=1)
"""Maximum time for all processes to write their files. Failures are reported immediately."""


def local_part(tensors: Mapping[str, Tensor], process: Process) -> dict[str, Tensor]:
    """Return the tensors that this process saves: all sharded tensors, of which it holds a part,
    and some of the replicated ones."""
    replicated = [name for name, t in tensors.items() if not isinstance(t, DTensor)]
    by_size = sorted(replicated, key=lambda name: (-tensors[name].nbytes, name))
    saved_elsewhere = {*replicated} - {*by_size[process.rank :: process.world_size]}
    return {name: tensor for name, tensor in tensors.items() if name not in saved_elsewhere}


class Saver:
    """Writes the checkpoints of a run and removes old ones.

    A single process pauses training to write one file of weights and one of optimizer state.
    Several processes write shards in the background.
    """

    def __init__(self, run: Run, keep: int) -> None:
        """Keep the newest `keep` checkpoints and the best one, or all if `keep` is 0."""
        self._run, self._keep = run, keep
        self.newest: int = run.update
        """Update after which the newest checkpoint was saved, or 0."""
        self._group: dist.ProcessGroup | None = None
        if run.process.world_size > 1:
            group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            self._group = cast(dist.ProcessGroup, group)  # every process is a member
        self._saving: tuple[TrainingState, ShardWriter, Future[Any]] | None = None
        """The checkpoint that is being saved in the background."""

    def save(self, valid: Validation | None, required: bool) -> None:
        """Write a checkpoint, unless the last update was skipped (non-finite loss or gradient).

        If writing fails, training continues, and saving is tried again when the next checkpoint is
        due. If `required`, the checkpoint is always written, and a failure raises OSError.
        """
        run = self._run
        if (skipped := run.tally.skipped_in_a_row) and not required:
            run.log.info(
                f"not saved after update {run.update}: the last {skipped} update(s) had a "
                "non-finite loss or gradient"
            )
            return
        with run.log.status("saving"):
            self.wait()
            if not skipped:
                # A later update succeeded, so the weights of the newest checkpoint are good.
                self._prune()
            state = _state(run, valid)
            contents = _contents(run, state)
            if self._group is None:
                self._finish(state, _try_save(run, contents), required)
                return
            local = local_part(contents.weights | contents.optimizer, run.process)
            writer = ShardWriter(run.folder.checkpoints_path, contents)
            # Copies the tensors, so they can change as soon as this returns.
            done = async_save(local, storage_writer=writer, process_group=self._group)
            assert isinstance(done, Future)
            self._saving = state, writer, done
            if required:
                self.wait(required=True)

    def wait(self, required: bool = False) -> None:
        """Wait for the background save, if any. If it failed, raise OSError if `required`, and
        otherwise log the error. All processes receive the same error."""
        if self._saving is None:
            return
        (state, writer, done), self._saving = self._saving, None
        error = done.exception()
        if error is not None and self._run.process.is_first:
            shutil.rmtree(writer.unfinished, ignore_errors=True)
        if isinstance(error, CheckpointException):  # contains one error per failed process
            error = error.failures[min(error.failures)][0]
        if error is not None and not isinstance(error, OSError):
            error = OSError(f"{type(error).__name__}: {error}")
        self._finish(state, error, required)

    def close(self) -> None:
        """Wait for the background save and destroy its process group."""
        self.wait()
        if self._group is not None:
            dist.destroy_process_group(self._group)

    def _finish(self, state: TrainingState, failure: OSError | None, required: bool) -> None:
        run = self._run
        if failure is None:
            self.newest = state.update
            if state.has_finite_loss:
                self._prune()
            return
        good = run.folder.checkpoints()
        message = (
            f"could not save update {state.update} ({failure}); the newest checkpoint is "
            f"{good[0].path if good else 'none'}; free some space if the disk is full"
        )
        if required:
            raise OSError(f"{message}, and resume the run") from failure
        run.log.info(f"{message}; training continues and will try again")

    def _prune(self) -> None:
        if not self._run.process.is_first:
            return
        try:
            self._run.folder.prune(self._keep)
        except OSError as error:
            self._run.log.info(f"could not remove an old checkpoint ({error}); training continues")


def _try_save(run: Run, contents: Contents) -> OSError | None:
    """Save now. Return the error if it fails."""
    weights, optimizer = (
        {name: tensor.cpu() for name, tensor in tensors.items()}
        for tensors in (contents.weights, contents.optimizer)
    )
    try:
        save(run.folder.checkpoints_path, replace(contents, weights=weights, optimizer=optimizer))
    except OSError as error:
        return error
    return None


def _state(run: Run, valid: Validation | None) -> TrainingState:
    data = run.data
    return TrainingState(
        **run.tally.counters(),
        place=run.stream.position,
        loss_scale=run.learner.scale.dump(),
        seed=run.config.training.seed,
        world_size=run.process.world_size,
        vocabulary=data.vocabulary.hash,
        text=data.split("train").sha256,
        valid=valid,
    )


def _contents(run: Run, state: TrainingState) -> Contents:
    """Return the contents of a checkpoint. Tensors can be sharded and are not copied."""
    model, data = run.learner.model, run.data
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = optimizers.state_tensors(run.learner.optimizers, model)
    if run.learner.carried is not None:
        tensors |= run.learner.carried.tensors()
    return Contents(
        weights, tensors, state, run.config, data.vocabulary, data.codes, data.splitting
    )


def raise_if_diverged(run: Run, saver: Saver) -> None:
    """Raise ValueError after `max_bad_updates` consecutive skipped updates.

    The message is the same in all processes, so a study counts it as one failure.
    """
    tally, max_bad = run.tally, run.config.training.max_bad_updates
    if tally.skipped_in_a_row < max_bad:
        return
    remedy = "lower the learning rate, or use training.dtype=bfloat16 or float32"
    saver.wait()
    if 0 < saver.newest >= tally.update - tally.skipped_in_a_row:
        newest = checkpoint_path(run.folder.checkpoints_path, saver.newest)
        remedy += f"; {newest} may also be bad: remove it to resume from the previous one"
    raise ValueError(
        f"training.max_bad_updates={max_bad}: this many consecutive updates had a non-finite loss "
        f"or gradient, up to update {run.update}; {remedy}"
    )
