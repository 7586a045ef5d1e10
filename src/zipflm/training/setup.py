"""Set up a run before its first update: checkpoint, model, optimizers and position in the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.distributed.processes import Process
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import empty_model
from zipflm.runs.records import ImportedState, Origin, Position, TrainingState
from zipflm.training import optimizers, parallel, throughput
from zipflm.training.checks import SAME_INPUTS_REMEDY, check_run_folder, require_weights_of
from zipflm.training.metrics import Log, Tally
from zipflm.training.schedule import high_end_warning
from zipflm.training.step import Learner, build_carried_state, build_learner
from zipflm.training.stream import Stream, accumulation, block_at, blocks_of, tokens_per_batch


@dataclass
class Run:
    """State of a run in one process. The counters are the same in all processes."""

    config: Config
    data: DataFolder
    folder: RunFolder
    process: Process
    learner: Learner
    stream: Stream
    tally: Tally
    log: Log
    update: int
    """Number of updates done."""
    full_validation: bool = True
    """Score the full validation set at validations after which a checkpoint is saved."""

    @property
    def should_stop_early(self) -> bool:
        """True if the last `patience` validations did not improve the loss."""
        return 0 < self.config.training.patience <= self.tally.since_best

    @property
    def should_save_after_validation(self) -> bool:
        """True if the last validation requires a checkpoint: with `patience`, if it lowered the
        loss or ends the run."""
        has_improved = self.config.training.patience > 0 and self.tally.since_best == 0
        return self.should_stop_early or has_improved


def overview(config: Config, process: Process) -> Iterator[str]:
    """Yield lines with the parameter counts of the model, the batches of an update, and a note on
    compilation."""
    parts = config.params_by_part()
    width = max(map(len, parts))
    yield f"{config.name}: {config.num_params():,} parameters"
    for part, count in parts.items():
        yield f"  {part:{width}}  {count:>13,}"
    yield from dict.fromkeys(_update_line(config, process, block) for block in blocks_of(config))
    if config.training.compile and config.decoder.is_compilable:
        yield "the first update compiles the model, which can take several minutes"


def _update_line(config: Config, process: Process, block: int) -> str:
    tokens = tokens_per_batch(config, block)
    size = f"{config.training.tokens_per_update:,} tokens per update"
    if not config.batches.blocks.has_one_length:
        size = f"at most {size}, padding included,"
    blocks = f" ({tokens // block} x {block})" if tokens != config.batches.tokens else ""
    return (
        f"{size} = {process.world_size} device(s) x {tokens:,} tokens{blocks} x "
        f"{accumulation(config, process, block)} accumulated"
    )


def open_run(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    process: Process,
    *,
    resume: bool,
    other_text: bool,
    initial: Checkpoint | None,
) -> Run | None:
    """Start or resume a run. Return None if it is already finished.

    Raises ValueError if it cannot be started or resumed in this folder, or does not fit in memory.
    """
    check_run_folder(folder, config, data, resume=resume, other_text=other_text)
    training = config.training
    log = Log(folder, training.max_updates, not process.is_first, training.tensorboard)
    # All processes read the folder before the first one changes it.
    latest = newest_valid(folder, process, log.info) if resume else None
    if latest is not None and _is_finished(config, latest):
        field = "max_updates (or epochs)" if latest.update >= training.max_updates else "patience"
        log.info(
            f"{folder.path}: already finished (update {latest.update} of {training.max_updates}); "
            f"raise training.{field} to continue"
        )
        return None
    origin = None
    if initial is not None and latest is None:
        source = str(initial.path.resolve().parent.parent)
        origin = Origin(run=source, checkpoint=initial.name, weights=initial.weights_hash)
        process.require_same({"the initial weights": origin.weights}, SAME_INPUTS_REMEDY)
        process.run_on_first(partial(initial.verify, optimizer=False))
    used = ["train"] + (["valid"] if "valid" in data.splits else [])
    process.run_on_first(lambda: data.verify(*used))
    process.require_shared(folder.path)
    done = latest.update if latest else 0

    def record_start() -> None:
        folder.record_start(config, data, done, throughput.device_name(process.device), origin)
        for path in folder.set_aside(done) if latest else ():
            log.info(f"moved the damaged checkpoint to {path}")

    process.run_on_first(record_start)
    for line in overview(config, process):
        log.info(line)
    warnings = [high_end_warning(config), long_blocks_warning(config)]
    if process.is_first and process.device.type == "cpu":
        flops = throughput.flops_left(config, data.vocabulary.counts, done)
        warnings += [throughput.slow_cpu_warning(flops, config.name)]
    for warning in filter(None, warnings):
        log.info(f"warning: {warning}")
    if origin is not None:
        log.info(f"starting with the weights of {origin.checkpoint} of {origin.run}")
    remedy = (
        f"{config.name}: not enough memory for {config.num_params():,} parameters on "
        f"{process.world_size} device(s); lower decoder.num_layers or decoder.dim, or shard the "
        "model over more devices with training.parallel=fsdp"
    )
    with explain_out_of_memory(remedy):
        return _build_run(config, data, folder, process, log, latest, initial)


def long_blocks_warning(config: Config) -> str | None:
    """Return a warning if a Transformer will be used with longer blocks than in training."""
    batches, longest = config.batches, max(blocks_of(config))
    if (
        batches.eval_block <= longest
        or batches.break_mode == "sentence"
        or config.decoder.has_constant_state
    ):
        return None
    return (
        f"batches.eval_block={batches.eval_block}: a Transformer predicts badly at positions after "
        f"the blocks in training ({longest}); use batches.eval_block={longest}, or train with "
        "longer blocks"
    )


def newest_valid(
    folder: RunFolder, process: Process, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None if the run has no checkpoints.

    The first process verifies the files. Raises ValueError in all processes if every checkpoint is
    damaged, or if the processes do not see the same ones.
    """
    checkpoints = folder.checkpoints()
    process.require_same(
        {"the checkpoints' updates": [checkpoint.update for checkpoint in checkpoints]},
        "the run folder must be on a file system that all machines share",
    )

    for checkpoint in checkpoints:
        try:
            process.run_on_first(checkpoint.verify)
            return checkpoint
        except (ValueError, OSError) as error:
            warn(f"{error}; falling back to the previous checkpoint")
    if checkpoints:
        raise ValueError(
            f"{folder.path}: none of the {len(checkpoints)} checkpoints can be read; restore one "
            "of them, or remove the folder to train again"
        )
    return None


def _is_finished(config: Config, checkpoint: Checkpoint) -> bool:
    state, training = checkpoint.state(), config.training
    if isinstance(state, TrainingState) and 0 < training.patience <= state.since_best:
        return True
    return checkpoint.update >= training.max_updates


def _build_run(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    process: Process,
    log: Log,
    latest: Checkpoint | None,
    initial: Checkpoint | None = None,
) -> Run:
    """Build a run that continues after the checkpoint `latest`, or a new one with the weights of
    `initial` or random ones."""
    model = empty_model(config, data.vocabulary)
    weights = latest or initial
    if weights is None:
        fill = partial(parallel.fill, model, config.training.seed)
    else:
        fill = partial(_load_weights, model, weights)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word, fill)
    state = None if latest is None else latest.state()
    assert not isinstance(state, ImportedState)  # rejected by `check_run_folder`
    tally, position = Tally(cpu_seconds=0.0), Position()
    if state is not None:
        log.info(f"resuming after update {state.update}")
        tally, position = Tally(**state.counters()), state.place
    if process.device.type != "cpu" or process.world_size > 1:
        tally.cpu_seconds = None
    block = block_at(config, tally.update)
    stream = Stream(config, data.tokens("train"), process, position, block)
    learner.carried = build_carried_state(config, model, process, block)
    run = Run(config, data, folder, process, learner, stream, tally, log, tally.update)
    if latest is not None and state is not None:
        stored = latest.stored_optimizer()
        optimizers.load_tensors(learner.optimizers, model, stored)
        learner.scale.load(state.loss_scale)
        if learner.carried is not None and stream.position == position:  # the rows continue
            learner.carried.load(stored)
    return run


def _load_weights(model: LanguageModel, checkpoint: Checkpoint) -> None:
    require_weights_of(model, checkpoint)
    checkpoint.stored_weights().load_into(model.state_dict())


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return True if a device or the host ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Raise ValueError with the message `remedy` if memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(remedy) from None


def remedy_for_updates(config: Config) -> str:
    """Return the error message for an update that does not fit in memory."""
    tokens = config.batches.tokens
    remedy = (
        f"batches.tokens={tokens}: not enough memory for a batch of this size; lower it, for "
        f"example to {tokens // 2} (gradients are then accumulated, and "
        "training.tokens_per_update stays the same)"
    )
    if config.training.recompute != "layer":
        remedy += (
            "; or set training.recompute=layer, which needs much less memory and about 20% more "
            "time"
        )
    return remedy
