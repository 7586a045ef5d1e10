"""Save the checkpoints of a run: as single files, or as shards if there are several processes."""

from __future__ import annotations

import shutil

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_together

from zipflm.runs.checkpoint import Contents, checkpoint_path
from zipflm.runs.records import TrainingState, Validation
from zipflm.runs.sharded import ShardWriter
from zipflm.training import optimizers
from zipflm.training.setup import Run


class Saver:
    """Writes the checkpoints of a run and removes old ones."""

    def __init__(self, run: Run, keep: int) -> None:
        """Keep the newest `keep` checkpoints and the best one, or all if `keep` is 0."""
        self._run, self._keep = run, keep
        self.newest: int = run.update
        """Update after which the newest checkpoint was saved, or 0."""

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
            if not skipped:
                # A later update succeeded, so the weights of the newest checkpoint are good.
                self._prune()
            state = _state(run, valid)
            contents = _contents(run, state)
            try:
                if run.process.world_size == 1:
                    run.folder.save(contents)
                else:
                    _save_shards(run, contents)
            except OSError as failure:
                self._report(failure, required)
                return
            self.newest = run.update
            if state.has_finite_loss:
                self._prune()

    def _report(self, failure: OSError, required: bool) -> None:
        good = self._run.folder.checkpoints()
        message = (
            f"could not save update {self._run.update} ({failure}); the newest checkpoint is "
            f"{good[0].path if good else 'none'}; free some space if the disk is full"
        )
        if required:
            raise OSError(f"{message}, and resume the run") from failure
        self._run.log.info(f"{message}; training continues and will try again")

    def _prune(self) -> None:
        if not self._run.process.is_first:
            return
        try:
            self._run.folder.prune(self._keep)
        except OSError as error:
            self._run.log.info(f"could not remove an old checkpoint ({error}); training continues")


def _save_shards(run: Run, contents: Contents) -> None:
    """Write the shards of all processes. All of them raise the same OSError if one fails."""
    writer = ShardWriter(run.folder.checkpoints_path, contents)
    try:
        # Each process saves its part of the sharded tensors and some of the replicated ones.
        save_together(contents.weights | contents.optimizer, storage_writer=writer)
    except CheckpointException as failed:  # a BaseException with one error per failed process
        if run.process.is_first:
            shutil.rmtree(writer.unfinished, ignore_errors=True)
        error = failed.failures[min(failed.failures)][0]
        if isinstance(error, OSError):
            raise error from None
        raise OSError(f"{type(error).__name__}: {error}") from error


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
    if 0 < saver.newest >= tally.update - tally.skipped_in_a_row:
        newest = checkpoint_path(run.folder.checkpoints_path, saver.newest)
        remedy += f"; {newest} may also be bad: remove it to resume from the previous one"
    raise ValueError(
        f"training.max_bad_updates={max_bad}: this many consecutive updates had a non-finite loss "
        f"or gradient, up to update {run.update}; {remedy}"
    )
