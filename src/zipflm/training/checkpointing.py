"""Save checkpoints and remove old ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor
from torch.distributed.tensor import DTensor

from zipflm.runs.checkpoint import Contents, checkpoint_path
from zipflm.runs.records import TrainingState, Validation
from zipflm.runs.sharded import save_shards
from zipflm.training import optimizers
from zipflm.training.distributed import Process
from zipflm.training.setup import Run


class Saver:
    """Writes the checkpoints of a run and removes old ones. With several processes, each writes its
    own shards."""

    def __init__(self, run: Run, keep: int) -> None:
        """Keep the newest `keep` checkpoints and the best one, or all if `keep` is 0."""
        self._run, self._keep = run, keep
        self.newest: int = run.update
        """Update of the newest saved checkpoint, or 0."""

    def save(self, valid: Validation | None, required: bool) -> None:
        """Write a checkpoint, unless the last update was skipped because its loss was not finite.

        If writing fails, the run continues and tries again next time. If `required`, the checkpoint
        is always written, and a failure raises OSError.
        """
        run = self._run
        if (skipped := run.tally.skipped_in_a_row) and not required:
            run.log.info(
                f"not saved after update {run.update}: the last {skipped} update(s) had a "
                "non-finite loss or gradient"
            )
            return
        if not skipped:
            # The newest checkpoint is good, because an update after it was not skipped.
            self._prune()
        state = _state(run, valid)
        try:
            with run.log.status("saving"):
                _save(run, state)
        except OSError as error:
            good = run.folder.checkpoints()
            message = (
                f"could not save update {state.update} ({error}); the newest checkpoint is "
                f"{good[0].path if good else 'none'}; free some space"
            )
            if required:
                raise OSError(f"{message} and resume the run") from error
            run.log.info(f"{message}; training continues and will try again")
            return
        self.newest = state.update
        if state.is_proven:
            self._prune()

    def _prune(self) -> None:
        if not self._run.process.is_first:
            return
        try:
            self._run.folder.prune(self._keep)
        except OSError as error:
            self._run.log.info(f"could not remove an old checkpoint ({error}); training continues")


def _save(run: Run, state: TrainingState) -> None:
    contents, process = _contents(run, state), run.process
    if process.world_size > 1:
        local = local_part(contents.weights | contents.optimizer, process)
        save_shards(run.folder.checkpoints_path, contents, local)
        return
    weights, optimizer = (
        {name: tensor.cpu() for name, tensor in tensors.items()}
        for tensors in (contents.weights, contents.optimizer)
    )
    run.folder.save(replace(contents, weights=weights, optimizer=optimizer))


def local_part(tensors: Mapping[str, Tensor], process: Process) -> dict[str, Tensor]:
    """Return the tensors this process saves: its shards, and a share of the replicated ones."""
    replicated = [name for name, t in tensors.items() if not isinstance(t, DTensor)]
    by_size = sorted(replicated, key=lambda name: (-tensors[name].nbytes, name))
    others = {*replicated} - {*by_size[process.rank :: process.world_size]}
    return {name: tensor for name, tensor in tensors.items() if name not in others}


def _state(run: Run, valid: Validation | None) -> TrainingState:
    tally, data = run.tally, run.data
    return TrainingState(
        update=run.update,
        place=run.stream.position,
        seconds=tally.seconds,
        compile_seconds=tally.compile_seconds,
        cpu_seconds=tally.cpu_seconds,
        skipped=tally.skipped,
        skipped_in_a_row=tally.skipped_in_a_row,
        since_report=tally.since_report,
        loss_scale=run.learner.scale.dump(),
        seed=run.config.training.seed,
        world_size=run.process.world_size,
        vocabulary=data.vocabulary.hash,
        text=data.split("train").sha256,
        valid=valid,
        best_loss=run.best_loss,
        since_best=run.since_best,
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


def stop_if_bad(run: Run, saver: Saver) -> None:
    """Raise ValueError after too many bad updates in a row.

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
        f"training.max_bad_updates={max_bad}: this many updates in a row had a non-finite loss or "
        f"gradient, up to update {run.update}; {remedy}"
    )
