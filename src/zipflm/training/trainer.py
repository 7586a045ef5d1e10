"""The training loop. All processes run the same code; only the first one writes files."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.data.folder import DataFolder
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report, Sums
from zipflm.training import (
    STALL_SECONDS,
    checks,
    distributed,
    optimizers,
    setup,
    step,
    throughput,
)
from zipflm.training.carried_state import carried_state
from zipflm.training.checkpointing import Saver, stop_if_bad
from zipflm.training.cuda_graphs import Updates
from zipflm.training.schedule import learning_rate
from zipflm.training.setup import Run
from zipflm.training.signals import StopSignal
from zipflm.training.stream import block_at
from zipflm.training.validation import validate


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
    """Train a run in the folder `out`. Return False if a signal stopped it before it was complete.

    With `resume`, the run continues from its newest valid checkpoint; `other_text` allows a
    different training text. The newest `keep` checkpoints (0: all) and the best one are kept. All
    processes stop if one of them makes no progress for `stall_seconds` seconds. Without
    `whole_validation`, validation scores only the sample used for the learning curve. A new run
    starts from the weights of `initial`, if given.

    Raises ValueError or OSError if the input is invalid. Saved checkpoints stay intact.
    """
    config = checks.checked(config, data, initial)
    folder = RunFolder(out)
    with (
        distributed.started(device, stall_seconds) as process,
        StopSignal(is_alone=process.world_size == 1) as stop,
        process.enter_on_first(folder.lock()),
    ):
        checks.check_processes(config, data, process)
        run = setup.open_run(
            config, data, folder, process, resume=resume, other_text=other_text, initial=initial
        )
        if run is None:  # already finished
            return True
        run.whole_validation = whole_validation
        saver = Saver(run, keep)
        try:
            with setup.explain_out_of_memory(setup.remedy_for_updates(config)):
                return _loop(run, saver, stop)
        finally:
            run.stream.close()
            saver.close()
            run.log.close()


def _loop(run: Run, saver: Saver, stop: StopSignal) -> bool:
    training, tally = run.config.training, run.tally
    # Several processes exchange stop requests during an update, so they all stop after the same
    # one.
    is_alone = run.process.world_size == 1
    updates, results = Updates(run.learner, run.config), step.ResultReader()
    run.log.start(run.update)
    tally.resume()
    while run.update < training.max_updates and not tally.stop and not run.should_stop_early:
        if is_alone and (stop.is_requested or run.log.output_closed):
            break
        _use_block(run, block_at(run.config, run.update))
        rate = learning_rate(training.schedule, run.update, training.max_updates)
        optimizers.set_rates(run.learner.optimizers, rate)
        # Dropout depends only on the update, so no random state has to be saved.
        torch.manual_seed(_seed(training.seed, run.update, run.process.rank))
        batches = _next_batches(run)
        with tally.compiling(run.learner):
            result = updates(batches, stop.is_requested)
        run.update += 1
        stop.arm()
        run.log.advance(run.update)
        tally.add(results.send(result))
        stop_if_bad(run, saver)

        is_last = run.update == training.max_updates
        should_report = is_last or _is_due(run.update, training.report_every) or run.update == 1
        should_validate = is_last or _is_due(run.update, training.validate_every)
        should_save = is_last or _is_due(run.update, training.checkpoint_every)
        if not (should_report or should_validate or should_save):
            continue
        tally.add(results.drain())
        tally.pause()
        stop_if_bad(run, saver)
        if should_report:
            run.log.report(_report(run, rate))
        valid = None
        if should_validate:
            valid = validate(run, whole=should_save)
            if run.should_stop_early and not should_report:
                run.log.report(_report(run, rate))
        if should_save or (should_validate and run.should_save):
            saver.save(valid, required=is_last or run.should_stop_early)
        tally.resume()
    tally.pause()
    tally.add(results.drain())
    saver.wait()
    if saver.newest < run.update:
        saver.save(None, required=True)
    return _finish(run)


def _finish(run: Run) -> bool:
    """Return True if the run is complete. Prints a message if it stopped before `max_updates`."""
    if run.update >= run.config.training.max_updates:
        return True
    if run.should_stop_early:
        run.log.info(
            f"stopped early after update {run.update}: {run.since_best} validations without a "
            "lower loss; use --checkpoint best for the best weights"
        )
        return True
    run.log.info(
        f"stopped after update {run.update} and saved in {run.folder.path}; add --resume to the "
        "same command to continue"
    )
    return False


def _is_due(update: int, every: int) -> bool:
    return every > 0 and update % every == 0


def _seed(seed: int, update: int, rank: int) -> int:
    return ((seed * 1_000_003 + update) * 65_537 + rank) % (1 << 62)


def _next_batches(run: Run) -> list[Batch]:
    start = time.perf_counter()
    batches = run.stream.next_update()
    run.tally.since_report.waited += time.perf_counter() - start
    return batches


def _use_block(run: Run, block: int) -> None:
    """Set the block length. The carried state is reset at each epoch and recreated when the length
    changes."""
    learner = run.learner
    if block != run.stream.block:
        run.stream.use_block(block)
        learner.carried = carried_state(run.config, learner.model, run.process, block)
    if learner.carried is not None and run.stream.is_at_start:
        learner.carried.reset()


def _report(run: Run, rate: float) -> Report:
    config, device, tally = run.config, run.process.device, run.tally
    since = tally.take()
    sums, elapsed = Sums(since.nll, since.tokens, since.words), max(since.seconds, 1e-9)
    seconds_per_update = elapsed / max(since.updates, 1)
    first = run.learner.optimizers[0].param_groups[0]
    return Report(
        update=run.update,
        epoch=run.stream.epochs,
        seconds=tally.seconds,
        token_unit=config.batches.unit,
        loss=sums.nats_per_token,
        nats_per_word=sums.nats_per_word,
        perplexity=sums.perplexity,
        learning_rate=rate * first["base_lr"],
        grad_norm=since.grad_norm if since.tokens else None,
        tokens_per_second=since.tokens / elapsed,
        data_share=since.waited / elapsed,
        skipped=tally.skipped,
        block=run.stream.block,
        memory=throughput.peak_memory(device),
        seconds_left=(config.training.max_updates - run.update) * seconds_per_update,
        flop_utilisation=_flop_utilisation(run, since.tokens / elapsed),
        compiled=run.learner.compiled,
        compile_seconds=tally.compile_seconds,
        cpu_seconds=tally.cpu_seconds,
    )


def _flop_utilisation(run: Run, tokens_per_second: float) -> float | None:
    """Return the fraction of the devices' peak FLOP/s, or None if unknown."""
    peak = throughput.peak_flops(run.process.device)
    if peak is None:
        return None
    flops = throughput.flops_per_token(run.config, run.data.vocabulary.counts, run.stream.block)
    return tokens_per_second * flops / (peak * run.process.world_size)
