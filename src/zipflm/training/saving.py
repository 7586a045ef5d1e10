"""When a checkpoint is written, and when the older ones may go.

An update whose own loss and gradient were finite can still spoil the weights, which the next update
shows. So a checkpoint is proven only by a good update that started from it, or by a finite loss on
the valid set; until then the ones before it stay, however few are to be kept.
"""

from __future__ import annotations

import torch

from zipflm.runs.checkpoint import Contents
from zipflm.runs.records import TrainingState, Validation
from zipflm.training import distributed, optimizers
from zipflm.training.run import Run


class Saver:
    """Writes the checkpoints of a run and removes those it no longer needs, in the first process.

    The other processes come along: they hold parts of what is saved, and know what was.
    """

    def __init__(self, run: Run, keep: int) -> None:
        """`keep` checkpoints besides the best one, all if 0. A run that is resumed starts from a
        checkpoint that has yet to be proven."""
        self._run, self._keep = run, keep
        self.newest = run.update
        """The update of the newest checkpoint, 0 if there is none."""
        self._is_proven = run.update == 0

    @property
    def doubtful(self) -> int | None:
        """The update of the newest checkpoint, if it is not known to be good."""
        return None if self._is_proven else self.newest

    def save(self, valid: Validation | None, must: bool) -> None:
        """Write a checkpoint, except while updates are being skipped: its weights would be those
        that gave no finite loss. `must` is for the last chance, when it is written all the same.

        Where writing fails the run goes on and tries again next time; OSError if it must.
        """
        run = self._run
        if run.tally.bad_in_a_row and not must:
            run.log.say(
                f"not saved after update {run.update}: the last {run.tally.bad_in_a_row} update(s) "
                "had a non-finite loss or gradient"
            )
            return
        state = _state(run, self._keep, valid)
        if self._write(state, must):
            self.newest, self._is_proven = run.update, state.is_proven
            if self._is_proven:
                self._prune()

    def see(self, last_good: int | None) -> None:
        """Remove old checkpoints if this update, the last that was not skipped, proves the newest:
        it started from it, or from what became of it."""
        if not self._is_proven and last_good is not None and last_good > self.newest:
            self._is_proven = True
            self._prune()

    def _write(self, state: TrainingState, must: bool) -> bool:
        """Whether it was written, in every process."""
        run = self._run
        contents = _contents(run, state)
        failure = None
        if run.process.is_first:
            try:
                run.folder.save(contents)
            except OSError as error:
                failure = error
        failures = torch.tensor(float(failure is not None), device=run.process.device)
        has_failed = distributed.add_up(failures, run.process).item() > 0
        if failure is not None:
            good = run.folder.checkpoints()
            message = (
                f"could not save update {run.update} ({failure}); the last good checkpoint is "
                f"{good[0].path if good else 'none'}; make room there"
            )
            if must:
                raise OSError(f"{message} and resume the run") from failure
            run.log.say(f"{message}, the run goes on and will try again")
        return not has_failed

    def _prune(self) -> None:
        if not self._run.process.is_first:
            return
        try:
            self._run.folder.prune(self._keep)
        except OSError as error:
            self._run.log.say(f"could not remove an old checkpoint ({error}); the run goes on")


def _state(run: Run, keep: int, valid: Validation | None) -> TrainingState:
    tally, data = run.tally, run.data
    return TrainingState(
        update=run.update,
        place=run.stream.place,
        seconds=tally.seconds,
        compile_seconds=tally.compile_seconds,
        skipped=tally.skipped,
        skipped_in_a_row=tally.bad_in_a_row,
        since_report=tally.since_report,
        loss_scale=run.learner.scale.dump(),
        seed=run.config.training.seed,
        world_size=run.process.world_size,
        vocabulary=data.vocabulary.hash,
        text=data.split("train").sha256,
        keep=keep,
        valid=valid,
    )


def _contents(run: Run, state: TrainingState) -> Contents:
    """All of a checkpoint; sharded tensors are gathered, so every process takes part."""
    model, data = run.learner.model, run.data
    weights = {k: distributed.whole(v) for k, v in model.state_dict().items()}
    tensors = optimizers.dump_tensors(run.learner.optimizers, model)
    return Contents(
        weights, tensors, state, run.config, data.vocabulary, data.codes, data.splitting
    )
