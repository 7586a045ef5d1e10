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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zipflm import __version__
from zipflm.analysis.report import make_writable, write_report
from zipflm.analysis.study import Member, ScoredText, Study, build
from zipflm.comparison.plan import Plan, Request, make_plans, open_words
from zipflm.comparison.progress import Display
from zipflm.comparison.runs import WordScores, make_member, score_once
from zipflm.config import Config
from zipflm.data.folder import DataFolder, naming_full_disk
from zipflm.evaluation.evaluate import Setting
from zipflm.overrides import from_dict, to_dict
from zipflm.training import distributed, run_folder
from zipflm.training.checkpoint import newest_first, read_json, verify
from zipflm.training.distributed import Process
from zipflm.training.setup import accumulation, check_data
from zipflm.training.throughput import reset_peak_memory
from zipflm.training.trainer import train as train_run

Train = Callable[[Config, DataFolder, Path], bool]
"""Trains, or goes on training, into a run folder; False if a signal ended it."""
Score = Callable[[Path, Path, str, Setting], WordScores]

_WITHOUT_CONSEQUENCE = {
    "batches": ("tokens",),
    "training": (
        "compile",
        "parallel",
        "report_every",
        "validate_every",
        "checkpoint_every",
        "max_bad_updates",
        "tensorboard",
    ),
}
"""Fields that decide how and how closely watched a member is trained, not what comes of it."""

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
class Outcome:
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
) -> Outcome:
    """Run a study, or the rest of it."""
    return run_plans(
        make_plans(request),
        request.data,
        request.out,
        title=f"Word representations compared on {request.data}",
        dataset=request.preset.partition("/")[0],
        facts={"preset": request.preset, "recipe": _recipe(request)}
        | ({"overrides": " ".join(request.overrides)} if request.overrides else {}),
        device=device,
        train=train,
        score=score,
    )


def run_plans(
    plans: Sequence[Plan],
    data: Path,
    out: Path,
    *,
    title: str,
    dataset: str,
    facts: dict[str, Any],
    device: str | None = None,
    train: Train | None = None,
    score: Score = score_once,
    others: Sequence[Member] = (),
) -> Outcome:
    """Train and score every plan, in order; `others` are members that need no training."""
    words = open_words(data)
    splits = scored_splits(words)
    with distributed.started(device) as process:
        for plan in plans:
            check(plan, process)
        if process.is_first:
            make_writable(out)
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
                page = write_report(study, out)
        distributed.wait_for_all(process)
    # Only the first process has scores.
    if process.is_first and not study.finished and not stopped:
        raise ValueError(f"no member has a result; the first says: {study.rows[0].problem}")
    return Outcome(study, page, stopped)


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
        self._data = DataFolder.open(plan.data)
        self.stopped = False

    def run(self, skip: bool) -> Member:
        """Train and score; what goes wrong becomes the member's problem."""
        scores: dict[str, WordScores] = {}
        problem = "not trained: the study was interrupted" if skip else ""
        try:
            with naming_full_disk(self._plan.folder, FULL_DISK_REMEDY):
                if not skip and not self._is_trained():
                    problem = self._trained()
                if not problem and self._process.is_first:
                    self._display.enter(self._plan, "scoring")
                    scores = self._scored()
            member = self._member(scores, problem)
        except (ValueError, OSError, RuntimeError) as error:
            problem = " ".join(str(error).split()) or type(error).__name__
            member = self._member({}, problem)
        distributed.wait_for_all(self._process)
        unfinished = "not trained" if skip else "stopped" if self.stopped else "failed"
        self._display.enter(self._plan, unfinished if problem else "done")
        return member

    def _member(self, scores: dict[str, WordScores], problem: str) -> Member:
        return make_member(
            self._plan.folder,
            self._plan.config,
            self._data,
            label=self._plan.label,
            factorization=self._plan.factorization,
            scores=scores,
            words=self._words,
            split=self._splits[-1],
            problem=problem,
        )

    def _is_trained(self) -> bool:
        """A whole checkpoint of the last update is there, and it is of this very model."""
        plan = self._plan
        run_folder.check(plan.folder, plan.config, self._data, resume=True)
        found = newest_first(plan.folder)
        if not found or _update(found[0]) < plan.config.training.max_updates:
            return False
        try:
            verify(found[0])
        except ValueError:  # the trainer names the damage and goes on from the one before
            return False
        return True

    def _trained(self) -> str:
        """Train with the trainer's own lines in a file; why it is not complete, if it is not."""
        self._display.enter(self._plan, "training")
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        # Otherwise the peak of a member would be that of the largest one before it.
        gc.collect()
        reset_peak_memory(self._process.device)
        place = self._plan.folder / f"output-{self._process.rank}.txt"
        with place.open("a", encoding="utf-8") as file, redirect_stdout(file):
            complete = self._train(self._plan.config, self._data, self._plan.folder)
        self.stopped = not complete
        return "" if complete else "interrupted; the same command goes on with it"

    def _scored(self) -> dict[str, WordScores]:
        setting = Setting(device=self._process.device.type)
        return {
            split: self._score(self._plan.folder, self._plan.data, split, setting)
            for split in self._splits
        }


def check(plan: Plan, process: Process) -> None:
    """ValueError if a member cannot be trained as planned, or its folder holds another run."""
    data = DataFolder.open(plan.data)
    try:
        data.tokens("train")
        check_data(plan.config, data)
        accumulation(plan.config, process)
        run_folder.check(plan.folder, plan.config, data, resume=True)
        _require_same_training(plan)
    except ValueError as error:
        raise ValueError(f"{plan.label}: {error}") from None


def _require_same_training(plan: Plan) -> None:
    """A run may be resumed with other settings, but then its result is not what the report says it
    is; only what leaves the result as it is may change in a study."""
    path = plan.folder / "config.json"
    if not path.is_file():
        return
    held, asked = to_dict(from_dict(Config, read_json(path))), to_dict(plan.config)
    for part, names in _WITHOUT_CONSEQUENCE.items():
        for name in names:
            held[part][name] = asked[part][name]
    run_folder.require_equal(plan.folder, held, asked, "choose another --out for another study")


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


def study_facts(words: DataFolder, plans: Sequence[Plan], process: Process) -> dict[str, Any]:
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
        "threads of each process": torch.get_num_threads(),
        "memory": "peak of the GPU's allocator" if name != "CPU" else "peak of the whole process",
    } | PROTOCOL_FACTS


def _either(values: Iterable[str]) -> str:
    """`a`, or `a or b` where members differ, as the paper's do in tokens per update."""
    return " or ".join(dict.fromkeys(values))


def _recipe(request: Request) -> str:
    return "the preset's own" if request.recipe == "paper" else request.recipe


def _update(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _trainer(device: str | None) -> Train:
    def train(config: Config, data: DataFolder, out: Path) -> bool:
        # One checkpoint to go on from is enough; the best one is not what is compared.
        return train_run(config, data, out, resume=True, keep=1, device=device)

    return train
