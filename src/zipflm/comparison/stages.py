"""What a study trains before its members: short runs that measure time, settings to choose from.

Each is an ordinary run with a folder of its own, so that a study which is interrupted here goes on
like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zipflm.analysis.study import Tried
from zipflm.comparison import budgets, tuning
from zipflm.comparison.budgets import Equal
from zipflm.comparison.job import Job, Score, Train
from zipflm.comparison.plan import Plan
from zipflm.comparison.progress import Display
from zipflm.comparison.tuning import Setting
from zipflm.comparison.watching import watched
from zipflm.data.folder import DataFolder
from zipflm.training.distributed import Process


@dataclass(frozen=True)
class Prepared:
    """The members of a study as they are to be trained."""

    plans: Sequence[Plan]
    tried: Sequence[Tried] = ()
    stopped: bool = False
    """Whether a signal ended the preparation; then nothing more is to be trained."""


@dataclass(frozen=True)
class Trainer:
    """Trains plans without scoring them."""

    words: DataFolder
    process: Process
    train: Train
    score: Score

    def run(self, plans: Sequence[Plan]) -> tuple[dict[str, str], bool]:
        """Why runs came to nothing, by path, and whether a signal ended it all."""
        problems: dict[str, str] = {}
        named = [replace(plan, label=f"{plan.label} {plan.setting}".strip()) for plan in plans]
        display = Display(named, sys.stdout, is_silent=not self.process.is_first)
        with display.shown():
            for plan in plans:
                job = Job(plan, self.words, (), self.process, display, self.train, self.score)
                problem = job.train()
                if problem:
                    problems[str(plan.run.path)] = problem
                if job.stopped:
                    return problems, True
        return problems, False


def prepare(
    plans: Sequence[Plan],
    out: Path,
    equal: Equal,
    grid: Sequence[Setting],
    overrides: Sequence[str],
    trainer: Trainer,
) -> Prepared:
    """Fix the updates of every member and its settings; `overrides` are what the user decides."""
    if equal == "seconds":
        short = budgets.calibrations(plans, out)
        problems, stopped = trainer.run(short)
        if stopped:
            return Prepared(plans, stopped=True)
        for plan in short:
            if str(plan.run.path) in problems:
                raise ValueError(
                    f"--equal seconds: {plan.label} could not be trained for a few updates to "
                    f"measure its time ({problems[str(plan.run.path)]}); leave it out"
                )
        seconds = {plan.label: budgets.seconds_per_update(plan.run.log()) for plan in short}
        plans = budgets.with_same_seconds(plans, seconds)
    plans = [replace(plan, config=watched(plan.config, overrides)) for plan in plans]
    if not grid:
        return Prepared(plans)
    planned = tuning.grid_plans(plans, grid)
    problems, stopped = trainer.run(tuning.to_try(planned))
    chosen, tried = tuning.choose(planned, problems)
    return Prepared(chosen, tried, stopped)
