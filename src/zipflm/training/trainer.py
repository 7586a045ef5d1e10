"""Training, from top to bottom: `train` builds everything, `_loop` is the run.

One process or many run the same code; the first one alone writes. What an update is stands in
`step`; what is saved, and what may be resumed, in `zipflm.runs`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from zipflm.config import Config
from zipflm.data.batches import Batch, Batches
from zipflm.data.folder import DataFolder
from zipflm.data.loader import Loader
from zipflm.evaluation.scoring import score_sums
from zipflm.model.precision import autocast
from zipflm.runs import resume as resuming
from zipflm.runs.building import untrained_model
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Place, Report, Sums, TrainingState, Validation
from zipflm.training import distributed, memory, optimizers, step, throughput
from zipflm.training.distributed import Process
from zipflm.training.log import Log
from zipflm.training.schedule import learning_rate
from zipflm.training.setup import accumulation, build_learner, check_data, overview
from zipflm.training.signals import StopSignal
from zipflm.training.step import Learner
from zipflm.training.stream import Stream, block_at
from zipflm.training.tally import Tally

_SHARE = "--out must be a folder that all machines share"


@dataclass
class Run:
    """A run in progress."""

    config: Config
    data: DataFolder
    folder: RunFolder
    keep: int
    process: Process
    learner: Learner
    stream: Stream
    tally: Tally
    log: Log
    update: int
    """Updates done."""


def train(
    config: Config,
    data: DataFolder,
    out: Path,
    *,
    resume: bool = False,
    keep: int = 3,
    device: str | None = None,
    other_text: bool = False,
) -> bool:
    """Train until `config.training.max_updates`; False if a signal ended it before.

    `out` is the run folder; with `resume` it may hold the same run, which is continued from its
    newest good checkpoint, with `other_text` also on another training text. `keep` checkpoints are
    kept besides the best one, all if 0. ValueError or OSError if the input does not allow it;
    nothing saved before is lost by that.
    """
    check_data(config, data)
    folder = RunFolder(out)
    with (
        distributed.started(device) as process,
        StopSignal() as stop,
        distributed.held_by_first(folder.lock(), process),
    ):
        accumulation(config, process)  # an error if no whole number of batches makes an update
        resuming.check(folder, config, data, resume=resume, other_text=other_text)
        log = Log(
            folder, config.training.max_updates, not process.is_first, config.training.tensorboard
        )
        found = folder.newest_contents(log.say) if resume else None
        done = found.state.update if found else None
        # All have looked at the folder before the first process changes it, and after.
        distributed.require_same("the newest checkpoint's update", done, process, _SHARE)
        if done is not None and done >= config.training.max_updates:
            log.say(
                f"{out}: already finished (update {done} of {config.training.max_updates}); to go "
                "on raise training.max_updates"
            )
            return True
        used = ["train"] + (["valid"] if "valid" in data.splits else [])
        distributed.let_first(lambda: data.verify(*used), process)
        if process.is_first:
            folder.open(config, data, done or 0)
            for path in folder.set_aside(done) if done is not None else ():
                log.say(f"the damaged checkpoint was moved out of the way, to {path}")
        distributed.wait_for_all(process)
        with log:
            for line in overview(config, process):
                log.say(line)
            with memory.model_explained(config):
                run = _start(config, data, folder, keep, process, log, found)
            try:
                return _loop(run, stop)
            except RuntimeError as error:
                if not memory.is_out_of_memory(error):
                    raise
                raise ValueError(memory.explanation(error, config, run.learner)) from None
            finally:
                run.stream.close()


def _loop(run: Run, stop: StopSignal) -> bool:
    training, tally = run.config.training, run.tally
    results = step.ResultReader()
    batches: list[Batch] = []
    last_saved = run.update
    run.log.begin(run.update)
    tally.go_on()
    while run.update < training.max_updates and not tally.stop:
        run.stream.use_block(block_at(run.config, run.update))
        rate = learning_rate(training.schedule, run.update, training.max_updates)
        optimizers.set_rates(run.learner.optimizers, rate)
        # Dropout is a function of the update, not of the past: nothing to save, nothing to lose.
        torch.manual_seed(_seed(training.seed, run.update, run.process.rank))
        previous, batches = batches, _next_batches(run)
        result = step.update(run.learner, batches, stop.is_requested)
        run.update += 1
        run.log.advance(run.update)
        tally.see(results.send(result))
        _stop_if_bad(run, previous)

        is_last = run.update == training.max_updates
        reports = is_last or _is_due(run.update, training.report_every) or run.update == 1
        validates = is_last or _is_due(run.update, training.validate_every)
        saves = is_last or _is_due(run.update, training.checkpoint_every)
        if reports or validates or saves:
            tally.see(results.drain())
            tally.pause()
            _stop_if_bad(run, batches)
            if reports:
                run.log.report(_report(run, rate))
            valid = _validate(run) if validates else None
            if saves and _save(run, valid, must=is_last):
                last_saved = run.update
            tally.go_on()
    tally.pause()
    tally.see(results.drain())
    if last_saved < run.update:
        _save(run, None, must=True)
    is_finished = run.update >= training.max_updates
    if not is_finished:
        run.log.say(
            f"stopped after update {run.update} and saved in {run.folder.path}; to go on, give the "
            "same command with --resume"
        )
    return is_finished


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


# --- Before the first update. ---


def _start(
    config: Config,
    data: DataFolder,
    folder: RunFolder,
    keep: int,
    process: Process,
    log: Log,
    found: Contents | None,
) -> Run:
    """A run at its beginning, or where a checkpoint left it."""
    model = untrained_model(config, data.vocabulary)
    if found is not None:
        model.load_state_dict(found.weights)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word)
    update, place, tally = 0, Place(), Tally()
    if found is not None:
        state = found.state
        assert isinstance(state, TrainingState)  # `resume.check` refuses runs from elsewhere
        optimizers.load_tensors(learner.optimizers, model, found.optimizer)
        learner.scale.load(state.loss_scale)
        update, place, tally = state.update, state.place, Tally(state.seconds, state.skipped)
        log.say(f"resuming after update {update}")
    stream = Stream(config, data.tokens("train"), process, place, block_at(config, update))
    return Run(config, data, folder, keep, process, learner, stream, tally, log, update)


# --- Between two updates. ---


def _report(run: Run, rate: float) -> Report:
    config, device = run.config, run.process.device
    numbers = run.tally.summary()
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
        memory=throughput.peak_memory(device),
        seconds_left=(config.training.max_updates - run.update) * numbers.seconds_per_update,
        flop_utilisation=_flop_utilisation(run, numbers.tokens_per_second),
        compiled=run.learner.compiled,
    )


def _flop_utilisation(run: Run, tokens_per_second: float) -> float | None:
    """The share of what the devices could do at most, where that is known."""
    peak = throughput.peak_flops(run.process.device)
    if peak is None:
        return None
    counts = run.data.vocabulary.counts
    flops = throughput.flops_per_token(run.config, counts, run.stream.block)
    return tokens_per_second * flops / (peak * run.process.world_size)


def _validate(run: Run) -> Validation | None:
    """Score the valid set, each process a share of it; report and return the result."""
    if "valid" not in run.data.splits:
        return None
    blocks, process, learner = run.config.batches.eval_blocks, run.process, run.learner
    batches = Batches(
        run.data.tokens("valid"),
        blocks,
        max_tokens=max(run.config.batches.tokens, blocks.block),
        shuffle=False,
        rank=process.rank,
        world_size=process.world_size,
    )
    unit = run.config.batches.unit
    ends_word = torch.from_numpy(run.data.ends_word) if unit == "bpe" else None
    # FSDP gathers weights in the wrapper's forward; otherwise the plain model spares compiling it
    # for shapes that training does not have.
    sharded = distributed.is_sharded(learner.scorer)
    nll = learner.scorer if sharded else learner.model.nll
    learner.model.eval()
    with autocast(learner.precision, process.device):
        loaded = Loader(batches, process.device).epoch(0)
        sums = score_sums(nll, loaded, process.device, ends_word)
    learner.model.train()
    sums = _over_processes(sums, process)
    result = Validation(
        update=run.update,
        seconds=run.tally.seconds,
        split="valid",
        nats_per_word=sums.nats_per_word,
        perplexity=sums.perplexity,
        nats_per_token=sums.nats_per_token,
        token_unit=unit,
        tokens=sums.tokens,
        words=sums.words,
        blocks=blocks,
    )
    run.log.report(result)
    return result


def _over_processes(sums: Sums, process: Process) -> Sums:
    own = torch.tensor([sums.nll, sums.tokens, sums.words], dtype=torch.float64)
    nll, tokens, words = distributed.add_up(own.to(process.device), process).tolist()
    return Sums(nll, int(tokens), int(words))


def _save(run: Run, valid: Validation | None, must: bool) -> bool:
    """Write a checkpoint. Where that fails, False: the run goes on and tries again at the next one,
    unless this was the last chance (`must`)."""
    learner = run.learner
    state = TrainingState(
        update=run.update,
        place=run.stream.place,
        seconds=run.tally.seconds,
        skipped=run.tally.skipped,
        loss_scale=learner.scale.dump(),
        seed=run.config.training.seed,
        world_size=run.process.world_size,
        vocabulary=run.data.vocabulary.hash,
        text=run.data.split("train").sha256,
        valid=valid,
    )
    # Sharded tensors are gathered, so every process takes part up to here.
    weights = {k: distributed.whole(v) for k, v in learner.model.state_dict().items()}
    tensors = optimizers.dump_tensors(learner.optimizers, learner.model)
    if not run.process.is_first:
        return True
    data = run.data
    contents = Contents(weights, tensors, state, run.config, data.vocabulary, data.codes)
    try:
        run.folder.save(contents, run.keep)
    except OSError as error:
        good = run.folder.checkpoints()
        message = (
            f"could not save update {run.update} ({error}); the last good checkpoint is "
            f"{good[0].path if good else 'none'}; make room there"
        )
        if must:
            raise OSError(f"{message} and resume the run") from error
        run.log.say(f"{message}, the run goes on and will try again")
        return False
    return True


# --- When something goes wrong. ---


def _stop_if_bad(run: Run, batches: Sequence[Batch]) -> None:
    """ValueError after too many updates without a finite loss and gradient; saves the batches."""
    if run.tally.bad_in_a_row < run.config.training.max_bad_updates:
        return
    path = run.folder.path / f"bad-batch-{run.process.rank}.safetensors"
    tensors = {}
    for index, batch in enumerate(batches):
        for name in ("words", "targets", "scored"):
            tensors[f"{index}/{name}"] = getattr(batch, name).cpu()
    save_file(tensors, path)
    raise ValueError(
        f"training.max_bad_updates={run.config.training.max_bad_updates}: so many updates in a row "
        f"had a non-finite loss or gradient, up to update {run.update}; the last batch is in "
        f"{path}; lower the learning rate, or use training.precision=bfloat16 or float32"
    )
