"""`zipflm compare`: train every member, score it, write the report.

A member is an ordinary run. One that is finished is not trained again, one that was interrupted
goes on, one that fails is reported in its row while the others go on. Under torchrun all processes
train together and the first one scores and writes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from zipflm import __version__
from zipflm.analysis.report import claim, write_report
from zipflm.analysis.study import Member, ScoredText, Study, build
from zipflm.comparison.members import ScoredRun, make_member, score_once
from zipflm.comparison.plan import Plan, Request, make_plans, open_words
from zipflm.comparison.progress import Display
from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.files import naming_full_disk
from zipflm.runs import resume
from zipflm.training import distributed
from zipflm.training.distributed import Process
from zipflm.training.setup import accumulation, check_data
from zipflm.training.throughput import reset_peak_memory
from zipflm.training.trainer import train as train_run

Train = Callable[[Config, DataFolder, Path], bool]
"""Trains, or goes on training, into a run folder; False if a signal ended it."""
Score = Callable[[Path, DataFolder, Sequence[str], ScoringOptions], ScoredRun]
"""Scores splits of a data folder with a run's newest checkpoint."""

FULL_DISK_REMEDY = "free some space and give the same command again"

PROTOCOL_FACTS = {
    "losses": "natural logarithm, per word; the end of a sentence counts as a word (column eos)",
    "unknown words": (
        "scored like any other: as the one symbol <unk> by word models (column unk), piece by "
        "piece by sub-word models, unless the text itself says <unk>"
    ),
    "time": "training, compilation included; validation and checkpoints are not",
    "tokens/s": "median over the log; of sub-word models, sub-words",
    "zipflm": __version__,
    "torch": torch.__version__,
}


@dataclass(frozen=True)
class FinishedStudy:
    """A study, where its page is, and whether a signal stopped it before the end."""

    study: Study
    page: Path
    stopped: bool


def compare(
    request: Request,
    *,
    device: str | None = None,
    train: Train | None = None,
    score: Score = score_once,
) -> FinishedStudy:
    """Run a study, or the rest of it."""
    words = open_words(request.data)
    return run_plans(
        make_plans(request, words),
        words,
        request.out,
        title=f"Word representations compared on {request.data}",
        dataset=_paper_dataset(request.preset),
        facts={"preset": request.preset, "recipe": _recipe(request)}
        | ({"overrides": " ".join(request.overrides)} if request.overrides else {}),
        device=device,
        train=train,
        score=score,
    )


def run_plans(
    plans: Sequence[Plan],
    words: DataFolder,
    out: Path,
    *,
    title: str,
    dataset: str,
    facts: dict[str, str],
    device: str | None = None,
    train: Train | None = None,
    score: Score = score_once,
    others: Sequence[Member] = (),
) -> FinishedStudy:
    """Train and score every plan, in order, and report on the held-out splits of `words`; `others`
    are members that need no training."""
    splits = scored_splits(words)
    with distributed.started(device) as process:
        for plan in plans:
            check(plan, process)
        if process.is_first:
            claim(out, "study")
        members: list[Member] = list(others)
        stopped = False
        display = Display(plans, sys.stdout, is_silent=not process.is_first)
        with display.shown():
            for plan in plans:
                job = _Job(plan, words, splits, process, display, train or _trainer(device), score)
                members.append(job.run(skip=stopped))
                stopped = stopped or job.stopped
        facts = facts | study_facts(words, plans, process)
        text = scored_text(words, splits[-1])
        study = build(members, text, title=title, dataset=dataset, facts=facts)
        page = out / "report.html"
        if process.is_first and (study.finished or stopped):
            with naming_full_disk(out, FULL_DISK_REMEDY):
                page = write_report(study, out, "study")
        distributed.wait_for_all(process)
    # Only the first process has scores.
    if process.is_first and not study.finished and not stopped:
        raise ValueError(f"no member has a result; the first says: {study.rows[0].problem}")
    return FinishedStudy(study, page, stopped)


class _Job:
    """One member from its plan to its row."""

    def __init__(
        self,
        plan: Plan,
        words: DataFolder,
        splits: Sequence[str],
        process: Process,
        display: Display,
        train: Train,
        score: Score,
    ) -> None:
        self._plan, self._words, self._splits = plan, words, splits
        self._process, self._display = process, display
        self._train, self._score = train, score
        self.stopped = False

    def run(self, skip: bool) -> Member:
        """Train and score; what goes wrong becomes the member's problem."""
        scored: ScoredRun | None = None
        problem = "not trained: the study was interrupted" if skip else ""
        try:
            with naming_full_disk(self._plan.run.path, FULL_DISK_REMEDY):
                if not skip and not self._is_trained():
                    problem = self._trained()
                if not problem and self._process.is_first:
                    self._display.enter(self._plan, "scoring")
                    scored = self._scored()
            member = self._member(scored, problem)
        except (ValueError, OSError, RuntimeError) as error:
            problem = " ".join(str(error).split()) or type(error).__name__
            member = self._member(None, problem)
        distributed.wait_for_all(self._process)
        unfinished = "not trained" if skip else "stopped" if self.stopped else "failed"
        self._display.enter(self._plan, unfinished if problem else "done")
        return member

    def _member(self, scored: ScoredRun | None, problem: str) -> Member:
        return make_member(
            self._plan.run,
            self._plan.config,
            label=self._plan.label,
            factorization=self._plan.factorization,
            scored=scored,
            words=self._words,
            split=self._splits[-1],
            problem=problem,
        )

    def _is_trained(self) -> bool:
        """A whole checkpoint of the last update is there, and it is of this very model."""
        plan = self._plan
        resume.check(plan.run, plan.config, plan.data, resume=True)
        found = plan.run.checkpoints()
        if not found or found[0].update < plan.config.training.max_updates:
            return False
        try:
            found[0].verify()
        except ValueError:  # the trainer names the damage and goes on from the one before
            return False
        return True

    def _trained(self) -> str:
        """Train with the trainer's own lines in a file; why it is not complete, if it is not."""
        self._display.enter(self._plan, "training")
        folder = self._plan.run.path
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise the peak of a member would be that of the largest one before it.
        gc.collect()
        reset_peak_memory(self._process.device)
        place = folder / f"output-{self._process.rank}.txt"
        with place.open("a", encoding="utf-8") as file, redirect_stdout(file):
            complete = self._train(self._plan.config, self._plan.data, folder)
        self.stopped = not complete
        return "" if complete else "interrupted; the same command goes on with it"

    def _scored(self) -> ScoredRun:
        options = ScoringOptions(device=self._process.device.type)
        return self._score(self._plan.run.path, self._plan.data, self._splits, options)


def check(plan: Plan, process: Process) -> None:
    """ValueError if a member cannot be trained as planned, or its folder holds another run."""
    try:
        plan.data.tokens("train")
        check_data(plan.config, plan.data)
        accumulation(plan.config, process)
        resume.check(plan.run, plan.config, plan.data, resume=True)
        _require_same_training(plan)
    except ValueError as error:
        raise ValueError(f"{plan.label}: {error}") from None


def _require_same_training(plan: Plan) -> None:
    """A run may be resumed with other settings, but then its result is not what the report says it
    is; only what leaves the result as it is may change in a study."""
    if not plan.run.holds_a_run:
        return
    held = _with_the_same_watching(plan.run.config(), plan.config)
    remedy = "choose another --out for another study"
    resume.require_same_config(plan.run.path, held, plan.config, remedy)


def _with_the_same_watching(config: Config, other: Config) -> Config:
    """`config` with those fields of `other` that decide how and how closely watched a member is
    trained, not what comes of it."""
    theirs = other.training
    return replace(
        config,
        batches=replace(config.batches, tokens=other.batches.tokens),
        training=replace(
            config.training,
            compile=theirs.compile,
            parallel=theirs.parallel,
            report_every=theirs.report_every,
            validate_every=theirs.validate_every,
            checkpoint_every=theirs.checkpoint_every,
            max_bad_updates=theirs.max_bad_updates,
            tensorboard=theirs.tensorboard,
        ),
    )


def scored_splits(words: DataFolder) -> tuple[str, ...]:
    """The held-out splits there are; the last one is analysed."""
    splits = tuple(split for split in ("valid", "test") if split in words.splits)
    if not splits:
        raise ValueError(
            f"{words.path}: neither a valid nor a test split to score; prepare it with --test"
        )
    return splits


def scored_text(words: DataFolder, split: str) -> ScoredText:
    return ScoredText(split=split, word_ids=words.tokens(split).ids, vocabulary=words.vocabulary)


def study_facts(words: DataFolder, plans: Sequence[Plan], process: Process) -> dict[str, str]:
    """What holds for the whole study, for its reader."""
    configs = [plan.config.training for plan in plans]
    updates = _either(f"{config.max_updates:,}" for config in configs)
    tokens = _either(f"{config.tokens_per_update:,}" for config in configs)
    optimizer = _either(type(config.optimizer).__name__ for config in configs)
    name = torch.cuda.get_device_name() if process.device.type == "cuda" else "CPU"
    return {
        "data": f"a vocabulary of {len(words.vocabulary):,} words",
        "folder": str(words.path),
        "vocabulary": words.vocabulary.hash,
        "training": f"{updates} updates of {tokens} tokens each, {optimizer}",
        "seeds": ", ".join(str(seed) for seed in sorted({plan.seed for plan in plans})),
        "devices": f"{process.world_size} x {name}",
        "threads of each process": str(torch.get_num_threads()),
        "memory": "peak of the GPU's allocator" if name != "CPU" else "peak of the whole process",
    } | PROTOCOL_FACTS


def _either(values: Iterable[str]) -> str:
    """`a`, or `a or b` where members differ, as the paper's do in tokens per update."""
    return " or ".join(dict.fromkeys(values))


def _paper_dataset(preset: str) -> str:
    """Whose rows of the paper stand beside ours; its comparison is of models of the base size."""
    dataset, _, size = preset.partition("/")
    return dataset if size in ("", "base") else ""


def _recipe(request: Request) -> str:
    return "the preset's own" if request.recipe == "paper" else request.recipe


def _trainer(device: str | None) -> Train:
    def train(config: Config, data: DataFolder, out: Path) -> bool:
        # One checkpoint to go on from is enough; the best one is not what is compared.
        return train_run(config, data, out, resume=True, keep=1, device=device)

    return train
