"""The training loop.

All processes run the same code. Each one writes its part of a checkpoint; only the first one writes
other files.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report, Sums
from zipflm.training import checks, optimizers, setup, step, throughput
from zipflm.training.checkpointing import Saver, raise_if_diverged
from zipflm.training.cuda_graphs import UpdateRunner
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
    full_validation: bool = True,
    initial: Checkpoint | None = None,
) -> bool:
    """Train a run in the folder `out`. Return True if it is complete.

    Returns False if the run was stopped early by a signal or, with a single process, because the
    program that reads its output exited. The run is then saved and can be resumed.

    With `resume`, the run continues from its newest valid checkpoint, or starts if it has none;
    `other_text` allows a different training text. The newest `keep` checkpoints (0: all) and the
    best one are kept. Without `full_validation`, validation scores only the sample used for the
    learning curve. A new run starts from the weights of `initial`, if given.

    Raises ValueError if the input is invalid, memory runs out or training diverges, and OSError if
    a file cannot be read or written. Saved checkpoints stay intact.
    """
    if initial is not None:
        checks.check_initial(initial, config, data)
    checks.check_data(config, data)
    config = checks.epochs_to_updates(config, data)
    folder = RunFolder(out)
    with (
        processes.started(device) as process,
        StopSignal(is_single_process=process.world_size == 1) as stop,
        process.enter_on_first(folder.lock()),
    ):
        throughput.reset_peak_memory(process.device)  # earlier models do not count
        checks.check_processes(config, data, process)
        run = setup.open_run(
            config, data, folder, process, resume=resume, other_text=other_text, initial=initial
        )
        if run is None:  # already finished
            return True
        run.full_validation = full_validation
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
    is_single_process = run.process.world_size == 1
    run_update, results = UpdateRunner(run.learner, run.config), step.ResultReader()
    run.log.start(run.update)
    tally.resume()
    while run.update < training.max_updates and not tally.should_stop and not run.should_stop_early:
        # Several processes exchange stop requests during an update (`tally.should_stop`), so that
        # all of them stop after the same one.
        if is_single_process and (stop.is_requested or run.log.is_output_closed):
            break
        _use_block(run, block_at(run.config, run.update))
        lr_factor = learning_rate(training.schedule, run.update, training.max_updates)
        optimizers.set_rates(run.learner.optimizers, lr_factor)
        # Dropout depends only on the seed, the update and the rank, so no random state is saved.
        torch.manual_seed(_seed(training.seed, run.update, run.process.rank))
        batches = _next_batches(run)
        with tally.compiling(run.learner):
            result = run_update(batches, stop.is_requested)
        run.update += 1
        stop.arm()
        run.log.advance(run.update)
        tally.add(results.send(result))  # adds the result of the previous update
        raise_if_diverged(run, saver)

        is_last = run.update == training.max_updates
        should_report = is_last or _is_due(run.update, training.report_every) or run.update == 1
        should_validate = is_last or _is_due(run.update, training.validate_every)
        is_save_due = is_last or _is_due(run.update, training.checkpoint_every)
        if not (should_report or should_validate or is_save_due):
            continue
        tally.add(results.drain())
        tally.pause()
        raise_if_diverged(run, saver)
        if should_report:
            run.log.report(_report(run, lr_factor))
        valid = None
        if should_validate:
            valid = validate(run, full=is_save_due)
            if run.should_stop_early and not should_report:
                run.log.report(_report(run, lr_factor))
        if is_save_due or (should_validate and run.should_save_after_validation):
            saver.save(valid, required=is_last or run.should_stop_early)
        tally.resume()
    tally.pause()
    tally.add(results.drain())
    saver.wait()
    if saver.newest < run.update:
        saver.save(None, required=True)
    return _log_outcome(run)


def _log_outcome(run: Run) -> bool:
    """Log the reason if the run stopped before `max_updates`. Return True if it is complete."""
    if run.update >= run.config.training.max_updates:
        return True
    if run.should_stop_early:
        run.log.info(
            f"stopped early after update {run.update}: the last {run.tally.since_best} "
            "validation(s) did not lower the loss; use --checkpoint best for the best weights"
        )
        return True
    run.log.info(
        f"stopped after update {run.update}; saved a checkpoint in {run.folder.path}; add --resume "
        "to the same command to continue"
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
    """Switch to blocks of this length. The carried decoder state, if any, starts from zero when the
    length changes and at the start of each epoch."""
    learner = run.learner
    if block != run.stream.block:
        run.stream.use_block(block)
        learner.carried = step.build_carried_state(run.config, learner.model, run.process, block)
    if learner.carried is not None and run.stream.is_at_start:
        learner.carried.reset()


def _report(run: Run, lr_factor: float) -> Report:
    config, device, tally = run.config, run.process.device, run.tally
    since = tally.take()
    sums, elapsed = Sums(since.nll, since.tokens, since.words), max(since.seconds, 1e-9)
    seconds_per_update = elapsed / max(since.updates, 1)
    first_group = run.learner.optimizers[0].param_groups[0]
    return Report(
        update=run.update,
        epoch=run.stream.epochs,
        seconds=tally.seconds,
        token_unit=config.batches.unit,
        loss=sums.nats_per_token,
        nats_per_word=sums.nats_per_word,
        perplexity=sums.perplexity,
        learning_rate=lr_factor * first_group["base_lr"],
        grad_norm=since.grad_norm if since.tokens else None,
        tokens_per_second=since.tokens / elapsed,
        data_share=since.waited / elapsed,
        skipped=tally.skipped,
        block=run.stream.block,
        memory=throughput.peak_memory(device),
        seconds_left=(config.training.max_updates - run.update) * seconds_per_update,
        flop_utilisation=_flop_utilization(run, since.tokens / elapsed),
        compiled=run.learner.compiled,
        compile_seconds=tally.compile_seconds,
        cpu_seconds=tally.cpu_seconds,
    )


def _flop_utilization(run: Run, tokens_per_second: float) -> float | None:
    """Return the achieved fraction of the devices' peak FLOP/s, or None if the peak is unknown."""
    peak = throughput.peak_flops(run.process.device)
    if peak is None:
        return None
    flops = throughput.flops_per_token(run.config, run.data.vocabulary.counts, run.stream.block)
    return tokens_per_second * flops / (peak * run.process.world_size)
