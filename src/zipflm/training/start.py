"""A run at its beginning, or where a checkpoint left it; each process reads only its own part."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.model.language_model import LanguageModel
from zipflm.runs.building import Values, empty_model, first_values
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder, problem_alone
from zipflm.runs.records import Place, TrainingState
from zipflm.training import distributed, optimizers
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
    seed = config.training.seed
    values = first_values(model, seed) if found is None else _stored_values(model, found)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word, values)
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


def _stored_values(model: LanguageModel, checkpoint: Checkpoint) -> Values:
    """The weights of a checkpoint; ValueError if they are those of another model."""
    stored = checkpoint.stored_weights()
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters()}
    held = {name: stored.shape(name) for name in stored.names}
    for name in sorted(shapes.keys() | held.keys()):
        if shapes.get(name) != held.get(name):
            raise ValueError(
                f"{checkpoint.path}: its {name} is {held.get(name, 'missing')}, and the model's "
                f"{shapes.get(name, 'none')}; resume from a checkpoint of this run"
            )
    return stored.read


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
