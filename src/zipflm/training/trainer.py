"""Training, from top to bottom: `train` builds everything, `_loop` is the run.

One process or many run the same code; the first one alone writes. What an update is stands in
`step`, what is saved in `checkpoint`, what may be resumed in `run_folder`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zipflm.config import Config
from zipflm.data.batches import Batch, Batches
from zipflm.data.folder import DataFolder
from zipflm.data.loader import Loader
from zipflm.evaluation.perplexity import Scores, score_sums
from zipflm.model.precision import autocast
from zipflm.overrides import to_dict
from zipflm.training import (
    checkpoint,
    distributed,
    memory,
    optimizers,
    run_folder,
    step,
    throughput,
)
from zipflm.training.checkpoint import Checkpoint
from zipflm.training.distributed import Process
from zipflm.training.log import Log
from zipflm.training.schedule import learning_rate
from zipflm.training.setup import (
    accumulation,
    build_learner,
    build_model,
    check_data,
    overview,
)
from zipflm.training.signals import StopSignal
from zipflm.training.step import Learner
from zipflm.training.stream import Place, Stream, block_at
from zipflm.training.tally import Tally

_DATA_FILES = ("vocabulary.txt", "bpe.codes")
"""What scoring text needs besides the weights; the second for sub-words only."""

_SHARE = "--out must be a folder that all machines share"


@dataclass
class Run:
    """A run in progress."""

    config: Config
    data: DataFolder
    out: Path
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
) -> bool:
    """Train until `config.training.max_updates`; False if a signal ended it before.

    `out` is the run folder; with `resume` it may hold the same run, which is continued from its
    newest good checkpoint. `keep` checkpoints are kept besides the best one, all if 0. ValueError
    or OSError if the input does not allow it; nothing saved before is lost by that.
    """
    check_data(config, data)
    with distributed.started(device) as process, StopSignal() as stop:
        accumulation(config, process)  # an error if no whole number of batches makes an update
        run_folder.check(out, config, data, resume)
        log = Log(
            out, config.training.max_updates, not process.is_first, config.training.tensorboard
        )
        found = checkpoint.load_newest(out, log.say) if resume else None
        done = found.state["update"] if found else None
        # All have looked at the folder before the first process changes it, and after.
        distributed.require_same("the newest checkpoint's update", done, process, _SHARE)
        if done is not None and done >= config.training.max_updates:
            log.say(
                f"{out}: already finished (update {done} of {config.training.max_updates}); to go "
                "on raise training.max_updates"
            )
            return True
        if process.is_first:
            run_folder.prepare(out, config, data, done or 0)
            for folder in checkpoint.set_aside(out, done) if done is not None else ():
                log.say(f"the damaged checkpoint was moved out of the way, to {folder}")
        distributed.wait_for_all(process)
        with log:
            for line in overview(config, process):
                log.say(line)
            with memory.model_explained(config):
                run = _start(config, data, out, keep, process, log, found)
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
            f"stopped after update {run.update} and saved in {run.out}; to go on, give the same "
            "command with --resume"
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
    out: Path,
    keep: int,
    process: Process,
    log: Log,
    found: Checkpoint | None,
) -> Run:
    """A run at its beginning, or where a checkpoint left it."""
    model = build_model(config, data)
    if found is not None:
        model.load_state_dict(found.weights)
    ends_word = torch.from_numpy(data.ends_word) if config.batches.unit == "bpe" else None
    learner = build_learner(config, model, process, ends_word)
    state: dict[str, Any] = {"update": 0, "place": {}, "seconds": 0.0, "skipped": 0}
    if found is not None:
        state = found.state
        optimizers.load_tensors(learner.optimizers, model, found.optimizer)
        scale = state["loss_scale"]
        learner.scale.load(None if scale is None else (scale[0], scale[1]))
        log.say(f"resuming after update {state['update']}")
    update, place = state["update"], Place(**state["place"])
    stream = Stream(config, data.tokens("train"), process, place, block_at(config, update))
    tally = Tally(state["seconds"], state["skipped"])
    return Run(config, data, out, keep, process, learner, stream, tally, log, update)


# --- Between two updates. ---


def _report(run: Run, rate: float) -> dict[str, Any]:
    numbers = run.tally.summary()
    config, device = run.config, run.process.device
    first = run.learner.optimizers[0].param_groups[0]
    left = (config.training.max_updates - run.update) * numbers.pop("seconds_per_update")
    entry = {"update": run.update, "epoch": run.stream.epochs} | numbers
    entry |= {"learning_rate": rate * first["base_lr"], "block": run.stream.block}
    entry |= {"memory": throughput.peak_memory(device), "seconds_left": left}
    peak = throughput.peak_flops(device)
    if peak is not None:
        flops = throughput.flops_per_token(config, run.data.vocabulary.counts, run.stream.block)
        speed = entry["tokens_per_second"] * flops
        entry["flop_utilisation"] = speed / (peak * run.process.world_size)
    return entry


def _validate(run: Run) -> dict[str, Any] | None:
    """Score the valid set, each process a share of it; report and return the result."""
    if "valid" not in run.data.splits:
        return None
    batch_config, process, learner = run.config.batches, run.process, run.learner
    batches = Batches(
        run.data.tokens("valid"),
        break_mode=batch_config.eval_break_mode,
        block=batch_config.eval_block,
        context=batch_config.eval_context,
        max_tokens=max(batch_config.tokens, batch_config.eval_block),
        shuffle=False,
        rank=process.rank,
        world_size=process.world_size,
    )
    ends_word = torch.from_numpy(run.data.ends_word) if batch_config.unit == "bpe" else None
    # FSDP gathers weights in the wrapper's forward; otherwise the plain model spares compiling it
    # for shapes that training does not have.
    sharded = distributed.is_sharded(learner.scorer)
    nll = learner.scorer if sharded else learner.model.nll
    learner.model.eval()
    with autocast(learner.precision, process.device):
        loaded = Loader(batches, process.device).epoch(0)
        scores = score_sums(nll, loaded, process.device, ends_word)
    learner.model.train()
    scores = _over_processes(scores, process)
    result = {"loss": scores.loss, "perplexity": scores.perplexity, "split": "valid"}
    result |= {"tokens": scores.tokens, "words": scores.words, "unit": "word"}
    result |= {
        "break_mode": batch_config.eval_break_mode,
        "block": batch_config.eval_block,
        "context": batch_config.eval_context,
    }
    run.log.report({"update": run.update, "seconds": run.tally.seconds, "valid": result})
    return result


def _over_processes(scores: Scores, process: Process) -> Scores:
    sums = torch.tensor([scores.nll, scores.tokens, scores.words], dtype=torch.float64)
    nll, tokens, words = distributed.add_up(sums.to(process.device), process).tolist()
    return Scores(nll, int(tokens), int(words))


def _save(run: Run, valid: dict[str, Any] | None, must: bool) -> bool:
    """Write a checkpoint. Where that fails, False: the run goes on and tries again at the next one,
    unless this was the last chance (`must`)."""
    learner = run.learner
    state = {
        "update": run.update,
        "place": asdict(run.stream.place),
        "seconds": run.tally.seconds,
        "skipped": run.tally.skipped,
        "loss_scale": learner.scale.dump(),
        "seed": run.config.training.seed,
        "world_size": run.process.world_size,
        "vocabulary": run.data.vocabulary.hash,
        "valid": valid,
    }
    # Sharded tensors are gathered, so every process takes part up to here.
    weights = {k: distributed.whole(v) for k, v in learner.model.state_dict().items()}
    tensors = optimizers.dump_tensors(learner.optimizers, learner.model)
    if not run.process.is_first:
        return True
    contents = Checkpoint(weights, tensors, state, to_dict(run.config))
    try:
        saved = checkpoint.save(
            run.out, contents, lambda folder: _copy_data_files(run.data, folder)
        )
        checkpoint.prune(run.out, run.keep, saved)
    except OSError as error:
        good = checkpoint.newest_first(run.out)
        message = (
            f"could not save update {run.update} ({error}); the last good checkpoint is "
            f"{good[0] if good else 'none'}; make room there"
        )
        if must:
            raise OSError(f"{message} and resume the run") from error
        run.log.say(f"{message}, the run goes on and will try again")
        return False
    return True


def _copy_data_files(data: DataFolder, folder: Path) -> None:
    for name in _DATA_FILES:
        if (data.path / name).is_file():
            shutil.copyfile(data.path / name, folder / name)


# --- When something goes wrong. ---


def _stop_if_bad(run: Run, batches: Sequence[Batch]) -> None:
    """ValueError after too many updates without a finite loss and gradient; saves the batches."""
    if run.tally.bad_in_a_row < run.config.training.max_bad_updates:
        return
    path = run.out / f"bad-batch-{run.process.rank}.safetensors"
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
