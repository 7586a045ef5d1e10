"""A run at its beginning, or where a checkpoint left it; each process reads only its own part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.model.language_model import LanguageModel
from zipflm.runs.building import empty_model, first_values
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder, problem_alone
from zipflm.runs.records import Place, TrainingState
from zipflm.training import distributed, filling, optimizers
from zipflm.training.distributed import Process
from zipflm.training.log import Log
from zipflm.training.run import Run
from zipflm.training.setup import build_learner
from zipflm.training.stream import Stream, block_at
from zipflm.training.tally import Tally


def newest_good(
    folder: RunFolder, process: Process, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint to resume from: each process verifies some of its files.

    ValueError in all of them if they do not see the same checkpoints.
    """

    def problem_of(checkpoint: Checkpoint | None) -> str | None:
        update = None if checkpoint is None else checkpoint.update
        distributed.require_same(
            {"the newest checkpoint's update": update},
            process,
            "--out must be a folder that all machines share",
        )
        problem = problem_alone(checkpoint, (process.rank, process.world_size))
        return next((found for found in process.all_values(problem) if found), None)

    return folder.newest_good(warn, problem_of)


def begin(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    process: Process,
    log: Log,
    found: Checkpoint | None,
) -> Run:
    """The run, ready for its next update."""
    model = empty_model(config, data.vocabulary)
    if found is None:
        fill = partial(filling.fill, model, first_values(model, config.training.seed))
    else:
        fill = partial(_load_weights, model, found)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word, fill)
    counts_cpu = process.device.type == "cpu" and process.world_size == 1
    update, place, state = 0, Place(), None
    tally = Tally(cpu_seconds=0.0 if counts_cpu else None)
    if found is not None:
        state = found.state()
        assert isinstance(state, TrainingState)  # `resume.check` refuses runs from elsewhere
        optimizers.load_tensors(learner.optimizers, model, found.stored_optimizer())
        learner.scale.load(state.loss_scale)
        update, place, tally = state.update, state.place, _tally(state, counts_cpu)
        log.say(f"resuming after update {update}")
    stream = Stream(config, data.tokens("train"), process, place, block_at(config, update))
    run = Run(config, data, folder, process, learner, stream, tally, log, update)
    if isinstance(state, TrainingState):
        run.best_loss, run.since_best = state.best_loss, state.since_best
    return run


def _load_weights(model: LanguageModel, checkpoint: Checkpoint) -> None:
    """Fill the model from a checkpoint; ValueError if its weights are those of another model."""
    stored, weights = checkpoint.stored_weights(), model.state_dict()
    needed = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(needed.keys() | stored.shapes.keys()):
        if needed.get(name) != stored.shapes.get(name):
            raise ValueError(
                f"{checkpoint.path}: its {name} is {stored.shapes.get(name, 'missing')}, and the "
                f"model's {needed.get(name, 'none')}; resume from a checkpoint of this run"
            )
    stored.load_into(weights)


def _tally(state: TrainingState, counts_cpu: bool) -> Tally:
    return Tally(
        state.seconds,
        state.skipped,
        update=state.update,
        skipped_in_a_row=state.skipped_in_a_row,
        since_report=state.since_report,
        compile_seconds=state.compile_seconds,
        cpu_seconds=state.cpu_seconds if counts_cpu else None,
    )
