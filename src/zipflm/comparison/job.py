"""One member of a study, from its plan to its row; what goes wrong is the row's, not the study's.

Under torchrun the processes agree on what became of the member after they trained it, and again
after they scored it. So a failure that all of them have is the member's, and one that
leaves them out of step ends them all (`training.distributed`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
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


class Job:
    """A plan to be carried out once."""

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
        self._member: Member | None = None
        self.stopped: bool = False
        """Whether a signal ended the training of this member."""

    def run(self, skip: bool) -> Member:
        """Train and score, unless the study was interrupted before (`skip`)."""
        problem = "not trained: the study was interrupted"
        if not skip:
            problem = self._agreed(self._make_trained)
            problem = problem or self._agreed(self._make_member)
        unfinished = "not trained" if skip else "stopped" if self.stopped else "failed"
        self._display.enter(self._plan, unfinished if problem else "done")
        return self._member or self._row(None, problem)

    def train(self) -> str:
        """Train alone; why there is no trained run, or nothing."""
        problem = self._agreed(self._make_trained)
        state = "stopped" if self.stopped else "failed" if problem else "trained"
        self._display.enter(self._plan, state)
        return problem

    def _agreed(self, work: Callable[[], str]) -> str:
        """Do a piece of work; why it has no result, which is the same in all processes."""
        try:
            with naming_full_disk(self._plan.run.path, FULL_DISK_REMEDY):
                problem = work()
        except (ValueError, OSError, RuntimeError) as error:
            problem = described(error)
        return distributed.agree(problem, self._process)

    def _make_trained(self) -> str:
        """Why the member is not trained to its end, if it is not."""
        if self._is_trained():
            return ""
        self._display.enter(self._plan, "training")
        folder = self._plan.run.path
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise the peak of a member would be that of the largest one before it.
        gc.collect()
        reset_peak_memory(self._process.device)
        place = folder / f"output-{self._process.rank}.txt"
        # The trainer's own lines go into a file.
        with place.open("a", encoding="utf-8") as file, redirect_stdout(file):
            complete = self._train(self._plan.config, self._plan.data, folder)
        self.stopped = not complete
        return "" if complete else "interrupted; the same command goes on with it"

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
        if self._process.is_first:
            with plan.run.lock():  # which removes what a killed process left unfinished
                plan.run.tidy()
        return True

    def _make_member(self) -> str:
        """Score the member, each process a share of the text; no problem, or an error."""
        self._display.enter(self._plan, "scoring")
        options = ScoringOptions(device=self._process.device.type)
        scored = self._score(self._plan.run.path, self._plan.data, self._splits, options)
        if self._process.is_first:  # which writes the report
            self._member = self._row(scored, "")
        return ""

    def _row(self, scored: ScoredRun | None, problem: str) -> Member:
        return make_member(
            self._plan.run,
            self._plan.config,
            label=self._plan.label,
            factorization=self._plan.factorization,
            scored=scored,
            words=self._words,
            data=self._plan.data,
            split=self._splits[-1],
            problem=problem,
        )
