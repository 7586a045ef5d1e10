"""Training, from top to bottom: `train` builds everything, `_loop` is the run.

One process or many run the same code; the first one alone writes. What an update is stands in
`step`; what is saved, and what may be resumed, in `zipflm.runs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.data.folder import DataFolder
from zipflm.evaluation.scoring import watched_by
from zipflm.runs import resume as resuming
from zipflm.runs.checkpoint import Checkpoint, checkpoint_path
from zipflm.runs.folder import RunFolder
from zipflm.runs.provenance import origin_of
from zipflm.runs.records import Report, TrainingState, Validation
from zipflm.storage import written_whole
from zipflm.training import STALL_SECONDS, advice, distributed, metrics, optimizers, setup, step
from zipflm.training.checkpointing import Saver
from zipflm.training.cuda_graphs import Updates
from zipflm.training.distributed import Process
from zipflm.training.metrics import Log
from zipflm.training.schedule import learning_rate
from zipflm.training.setup import (
    Run,
    accumulation,
    check_data,
    check_initial,
    check_processes,
    in_updates,
    inputs,
    overview,
)
from zipflm.training.signals import StopSignal
from zipflm.training.stream import block_at
from zipflm.training.validation import seconds_left, validate


def train(
    config: Config,
    data: DataFolder,
    out: Path,
    *,
    resume: bool = False,
    keep: int = 3,
    device: str | None = None,
    other_text: bool = False,
    stall_seconds: float = STALL_SECONDS,
    whole_validation: bool = True,
    initial: Checkpoint | None = None,
) -> bool:
    """Train until `config.training` says it is over; False if a signal ended it before.

    `out` is the run folder; with `resume` it may hold the same run, which is continued from its
    newest good checkpoint, with `other_text` also on another training text. `keep` checkpoints are
    kept besides the best one, all if 0. Several processes end if one of them does not answer for
    `stall_seconds`. Without `whole_validation` only the part of the valid set for the learning
    curve is scored, as a study does, which scores the result itself. A run that starts takes its
    weights from the checkpoint `initial` of another run; optimizer and schedule begin anew.
    ValueError or OSError if the
    input does not allow it; nothing saved before is lost by that.
    """
    if initial is not None:
        check_initial(initial, config, data)
    check_data(config, data)
    config = in_updates(config, data)
    folder = RunFolder(out)
    with (
        distributed.started(device, stall_seconds) as process,
        StopSignal(is_alone=process.world_size == 1) as stop,
        distributed.held_by_first(folder.lock(), process),
    ):
        accumulation(config, process)  # an error if no whole number of batches makes an update
        check_processes(config, process)
        same = "give all processes the same command, data and packages"
        distributed.require_same(inputs(config, data), process, same)
        resuming.check(folder, config, data, resume=resume, other_text=other_text)
        log = Log(
            folder, config.training.max_updates, not process.is_first, config.training.tensorboard
        )
        # All look at the folder before the first process changes it, and after.
        found = setup.newest_good(folder, process, log.say) if resume else None
        done = found.update if found else None
        held = folder.config() if found else None
        if found is not None and _is_finished(config, found):
            field = "max_updates" if found.update >= config.training.max_updates else "patience"
            log.say(
                f"{out}: already finished (update {done} of {config.training.max_updates}); to go "
                f"on raise training.{field}"
            )
            if process.is_first:
                folder.tidy()
            return True
        origin = None
        if initial is not None and found is None:
            origin = origin_of(initial)
            distributed.require_same({"the initial weights": origin.weights}, process, same)
            distributed.let_first(partial(initial.verify, optimizer=False), process)
        used = ["train"] + (["valid"] if "valid" in data.splits else [])
        distributed.let_first(lambda: data.verify(*used), process)
        distributed.require_shared(folder.path, process)

        def open_folder() -> None:
            folder.open(config, data, done or 0, metrics.device_name(process.device), origin)
            for path in folder.set_aside(done) if done is not None else ():
                log.say(f"the damaged checkpoint was moved out of the way, to {path}")

        distributed.let_first(open_folder, process)
        with log:
            for line in overview(config, process):
                log.say(line)
            for line in _warnings(config, data, process, done or 0, held):
                log.say(f"warning: {line}")
            if origin is not None:
                log.say(f"starting with the weights of {origin.checkpoint} of {origin.run}")
            with advice.model_explained(config, process):
                run = setup.begin(config, data, folder, process, log, found, initial)
            run.whole_validation = whole_validation
            saver = Saver(run, keep)
            try:
                return _loop(run, saver, stop)
            except RuntimeError as error:
                if not advice.is_out_of_memory(error):
                    raise
                raise ValueError(advice.explanation(config)) from None
            finally:
                run.stream.close()
                saver.close()


def _is_finished(config: Config, checkpoint: Checkpoint) -> bool:
    state, training = checkpoint.state(), config.training
    if isinstance(state, TrainingState) and 0 < training.patience <= state.since_best:
        return True
    return checkpoint.update >= training.max_updates


def _warnings(
    config: Config, data: DataFolder, process: Process, done: int, held: Config | None
) -> Iterator[str]:
    """What to know before the first update, while it is early enough to do otherwise."""
    yield from advice.doubts(config, done, held)
    if (busy := advice.load()) is not None:
        yield busy
    if process.is_first and process.device.type == "cpu":
        operations = advice.work(config, data.vocabulary.counts, done)
        slow = advice.slowness(operations, config.name)
        if slow is not None:
            yield slow


def _loop(run: Run, saver: Saver, stop: StopSignal) -> bool:
    training, tally = run.config.training, run.tally
    # Several processes stop together, after an update in which one of them has told the others.
    is_alone = run.process.world_size == 1
    updates, results = Updates(run.learner, run.config), step.ResultReader()
    batches: list[Batch] = []
    run.log.begin(run.update)
    tally.go_on()
    while run.update < training.max_updates and not tally.stop and not run.stops_early:
        if is_alone and (stop.is_requested or run.log.is_unread):
            break
        run.stream.use_block(block_at(run.config, run.update))
        rate = learning_rate(training.schedule, run.update, training.max_updates)
        optimizers.set_rates(run.learner.optimizers, rate)
        # Dropout is a function of the update, not of the past: nothing to save, nothing to lose.
        torch.manual_seed(_seed(training.seed, run.update, run.process.rank))
        previous, batches = batches, _next_batches(run)
        with _compiling(run), tally.compiling(run.learner):
            result = updates(batches, stop.is_requested)
        run.update += 1
        stop.arm()
        run.log.advance(run.update)
        tally.see(results.send(result))
        saver.see(tally.last_good)
        _stop_if_bad(run, saver, previous)

        is_last = run.update == training.max_updates
        reports = is_last or _is_due(run.update, training.report_every) or run.update == 1
        validates = is_last or _is_due(run.update, training.validate_every)
        saves = is_last or _is_due(run.update, training.checkpoint_every)
        if reports or validates or saves:
            tally.see(results.drain())
            tally.pause()
            saver.see(tally.last_good)
            _stop_if_bad(run, saver, batches)
            if reports:
                run.log.report(_report(run, rate))
            # Early stopping counts validations, so none may be missing.
            may_stop = is_alone and not is_last and not training.patience
            valid = _validated(run, stop, whole=saves, may_stop=may_stop) if validates else None
            if run.stops_early and not reports:
                run.log.report(_report(run, rate))
            if saves or (validates and run.saves_now):
                with run.log.doing("saving"):
                    saver.save(valid, must=is_last or run.stops_early)
            tally.go_on()
    tally.pause()
    tally.see(results.drain())
    saver.see(tally.last_good)
    with run.log.doing("saving"):
        saver.wait()
        if saver.newest < run.update:
            saver.save(None, must=True)
    if run.update < training.max_updates and run.stops_early:
        run.log.say(
            f"stopped early after update {run.update}: {run.since_best} validations without a "
            "lower loss; --checkpoint best chooses the weights of the best one"
        )
        return True
    is_finished = run.update >= training.max_updates
    if not is_finished:
        run.log.say(
            f"stopped after update {run.update} and saved in {run.folder.path}; to go on, give the "
            "same command with --resume"
        )
    return is_finished


def _compiling(run: Run) -> AbstractContextManager[None]:
    """Around an update: says so if the model is compiled in it, which may take minutes."""
    if run.learner.compilation is None or run.stream.block in run.compiled_blocks:
        return nullcontext()
    run.compiled_blocks.add(run.stream.block)
    line = f"compiling the model for blocks of {run.stream.block}, which may take minutes"
    return run.log.doing("compiling", line)


class _Stopped(Exception):
    """A pass over the valid set was given up."""


def _validated(run: Run, stop: StopSignal, *, whole: bool, may_stop: bool) -> Validation | None:
    """What `validate` gives; None as well if a signal came meanwhile."""

    def see(what: str, tokens: int, total: int | None) -> None:
        if may_stop and stop.is_requested:
            raise _Stopped

    try:
        with watched_by(see), run.log.doing("validating"):
            return validate(run, whole=whole)
    except _Stopped:
        run.learner.model.train()
        return None


def _next_batches(run: Run) -> list[Batch]:
    num_batches = accumulation(run.config, run.process, run.stream.block)
    start = time.perf_counter()
    batches = [run.stream.next() for _ in range(num_batches)]
    run.tally.waited += time.perf_counter() - start
    return batches


def _is_due(update: int, every: int) -> bool:
    return every > 0 and update % every == 0


def _seed(seed: int, update: int, rank: int) -> int:
    return ((seed * 1_000_003 + update) * 65_537 + rank) % (1 << 62)


# --- Between two updates. ---


def _report(run: Run, rate: float) -> Report:
    config, device = run.config, run.process.device
    numbers = run.tally.summary()
    updates_left = config.training.max_updates - run.update
    # Scoring a token takes about a third of the time of training on it.
    guess = numbers.seconds_per_update / config.training.tokens_per_update / 3
    first = run.learner.optimizers[0].param_groups[0]
    return Report(
        update=run.update,
        epoch=run.stream.epochs,
        seconds=run.tally.seconds,
        token_unit=config.batches.unit,
        loss=numbers.sums.nats_per_token,
        nats_per_word=numbers.sums.nats_per_word,
        perplexity=numbers.sums.perplexity,
        learning_rate=rate * first["base_lr"],
        grad_norm=numbers.grad_norm,
        tokens_per_second=numbers.tokens_per_second,
        data_share=numbers.data_share,
        skipped=run.tally.skipped,
        block=run.stream.block,
        memory=metrics.peak_memory(device),
        seconds_left=updates_left * numbers.seconds_per_update + seconds_left(run, guess),
        flop_utilisation=_flop_utilisation(run, numbers.tokens_per_second),
        compiled=run.learner.compiled,
        compile_seconds=run.tally.compile_seconds,
        cpu_seconds=run.tally.cpu_seconds,
    )


def _flop_utilisation(run: Run, tokens_per_second: float) -> float | None:
    """The share of what the devices could do at most, where that is known."""
    peak = metrics.peak_flops(run.process.device)
    if peak is None:
        return None
    counts = run.data.vocabulary.counts
    flops = metrics.flops_per_token(run.config, counts, run.stream.block)
    return tokens_per_second * flops / (peak * run.process.world_size)


# --- When something goes wrong. ---


def _stop_if_bad(run: Run, saver: Saver, batches: Sequence[Batch]) -> None:
    """ValueError after too many updates without a finite loss and gradient; saves the batches.

    All processes say the same, so that a study knows it for one failure.
    """
    if run.tally.bad_in_a_row < run.config.training.max_bad_updates:
        return
    tensors = {}
    for index, batch in enumerate(batches):
        for name in ("words", "targets", "scored"):
            tensors[f"{index}/{name}"] = getattr(batch, name).cpu()
    with written_whole(run.folder.path / f"bad-batch-{run.process.rank}.safetensors") as path:
        save_file(tensors, path)
    numbers = "0" if run.process.world_size == 1 else "*"
    remedy = "lower the learning rate, or use training.dtype=bfloat16 or float32"
    doubtful = saver.doubtful()
    if doubtful:
        newest = checkpoint_path(run.folder.checkpoints_path, doubtful)
        remedy += f"; {newest} may be spoilt already: remove it to resume from the one before"
    raise ValueError(
        f"training.max_bad_updates={run.config.training.max_bad_updates}: so many updates in a row "
        f"had a non-finite loss or gradient, up to update {run.update}; the last batch is in "
        f"{run.folder.path}/bad-batch-{numbers}.safetensors; {remedy}"
    )
