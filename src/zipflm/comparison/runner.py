"""Train and score the plans of a study; a member that fails has its reason, and the others go on.

Under torchrun the processes agree on the outcome of a member after they trained it, and again after
they scored it. So a failure that all of them have is the member's, and one that leaves them out of
step ends them all (`training.distributed`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

from zipflm.analysis.study import Member
from zipflm.comparison.members import ScoredRun, make_member
from zipflm.comparison.plan import Plan
from zipflm.comparison.progress import Display
from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.files import naming_full_disk
from zipflm.runs import resume
from zipflm.training import distributed
from zipflm.training.distributed import Process, described
from zipflm.training.throughput import reset_peak_memory

Train = Callable[[Config, DataFolder, Path], bool]
"""Trains, or goes on training, into a run folder; False if a signal ended it."""
Score = Callable[[Path, DataFolder, Sequence[str], ScoringOptions], ScoredRun]
"""Scores splits of a data folder with a run's newest checkpoint; called by every process."""

FULL_DISK_REMEDY = "free some space and give the same command again"


class Runner:
    """Trains and scores plans, one after the other."""

    def __init__(self, words: DataFolder, process: Process, train: Train, score: Score) -> None:
        self._words, self._process = words, process
        self._train, self._score = train, score
        self.stopped: bool = False
        """Whether a signal ended the study; plans that are left are not trained."""

    def train(self, plans: Sequence[Plan]) -> dict[Path, str]:
        """Train without scoring; the reasons of runs that came to nothing."""
        problems: dict[Path, str] = {}
        named = [replace(plan, label=f"{plan.label} {plan.setting}".strip()) for plan in plans]
        display = self._display(named)
        with display.shown():
            for plan in plans:
                if self.stopped:
                    break
                problem = self._agreed(plan, partial(self._make_trained, plan, display))
                stage = "stopped" if self.stopped else "failed" if problem else "trained"
                display.enter(plan, stage)
                if problem:
                    problems[plan.run.path] = problem
        return problems

    def members(self, plans: Sequence[Plan], splits: Sequence[str]) -> list[Member]:
        """Train and score; a member for every plan, with its problem if it has no result."""
        display = self._display(plans)
        with display.shown():
            return [self._member(plan, splits, display) for plan in plans]

    def _display(self, plans: Sequence[Plan]) -> Display:
        return Display(plans, sys.stdout, is_silent=not self._process.is_first)

    def _member(self, plan: Plan, splits: Sequence[str], display: Display) -> Member:
        row = partial(
            make_member,
            plan.run,
            plan.config,
            label=plan.label,
            factorization=plan.factorization,
            words=self._words,
            data=plan.data,
            split=splits[-1],
        )
        found: list[Member] = []

        def score() -> str:
            display.enter(plan, "scoring")
            options = ScoringOptions(device=self._process.device.type)
            scored = self._score(plan.run.path, plan.data, splits, options)
            if self._process.is_first:  # which writes the report
                found.append(row(scored=scored))
            return ""

        if self.stopped:
            problem, stage = "not trained: the study was interrupted", "not trained"
        else:
            problem = self._agreed(plan, partial(self._make_trained, plan, display))
            problem = problem or self._agreed(plan, score)
            stage = "stopped" if self.stopped else "failed" if problem else "done"
        display.enter(plan, stage)
        return found[0] if found else row(scored=None, problem=problem)

    def _agreed(self, plan: Plan, work: Callable[[], str]) -> str:
        """Do a piece of work; why it has no result, which is the same in all processes."""
        try:
            with naming_full_disk(plan.run.path, FULL_DISK_REMEDY):
                problem = work()
        except (ValueError, OSError, RuntimeError) as error:
            problem = described(error)
        return distributed.agree(problem, self._process)

    def _make_trained(self, plan: Plan, display: Display) -> str:
        """Why the member is not trained to its end, if it is not."""
        if self._is_trained(plan):
            return ""
        display.enter(plan, "training")
        folder = plan.run.path
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise the peak of a member would be that of the largest one before it.
        gc.collect()
        reset_peak_memory(self._process.device)
        output = folder / f"output-{self._process.rank}.txt"
        with output.open("a", encoding="utf-8") as file, redirect_stdout(file):
            complete = self._train(plan.config, plan.data, folder)
        self.stopped = not complete
        return "" if complete else "interrupted; the same command goes on with it"

    def _is_trained(self, plan: Plan) -> bool:
        """Whether a whole checkpoint of the last update is there, of this very model."""
        resume.check(plan.run, plan.config, plan.data, resume=True)
        found = plan.run.checkpoints()
        if not found or found[0].update < plan.config.training.max_updates:
            return False
        try:
            found[0].verify()
        except ValueError:  # the trainer names the damage and goes on from the one before
            return False
        if self._process.is_first:
            with plan.run.lock():  # which removes what a killed process left unfinished
                plan.run.tidy()
        return True
