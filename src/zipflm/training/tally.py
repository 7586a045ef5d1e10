"""Sums over the updates since the last report, and what must be known of the whole run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from zipflm.runs.records import SinceReport, Sums
from zipflm.training.step import Learner, UpdateResult


@dataclass(frozen=True)
class Summary:
    """The updates since the last summary."""

    sums: Sums
    """Over those that were not skipped."""
    grad_norm: float
    tokens_per_second: float
    seconds_per_update: float
    data_share: float
    """Part of the time spent waiting for data."""


class Tally:
    """Time counts while training only: `pause` before validating or saving, `go_on` after.

    A run that is resumed hands over what its checkpoint knew; `since_report` gives that back.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        skipped: int = 0,
        *,
        update: int = 0,
        skipped_in_a_row: int = 0,
        since_report: SinceReport | None = None,
        compile_seconds: float = 0.0,
        cpu_seconds: float | None = None,
    ) -> None:
        self.seconds: float = seconds
        self.skipped: int = skipped
        self.compile_seconds: float = compile_seconds
        """Of `seconds`, those of updates in which the model was compiled."""
        self.cpu_seconds = cpu_seconds
        """CPU time of this thread, without compilation; None: not counted.

        Of this thread alone, because that of all threads depends on how OpenMP waits.
        """
        self.bad_in_a_row: int = skipped_in_a_row
        self.stop: bool = False
        self.last_good: int | None = None
        """The last update of this session that was not skipped."""
        self._update = update
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()
        self._start_again(since_report or SinceReport())

    def _start_again(self, since: SinceReport) -> None:
        self._nll, self._tokens, self._words = since.nll, since.tokens, since.words
        self._updates, self._norm = since.updates, since.grad_norm
        self._from = self.seconds - since.seconds
        self.waited: float = since.waited
        """Seconds the loop waited for data."""

    def see(self, outcomes: Iterable[UpdateResult]) -> None:
        """Take in what has arrived from the device."""
        for outcome in outcomes:
            self._update += 1
            self._updates += 1
            self.stop = self.stop or outcome.stop > 0
            if outcome.bad:
                self.skipped += 1
                self.bad_in_a_row += 1
                continue
            self.bad_in_a_row = 0
            self.last_good = self._update
            self._nll += outcome.nll
            self._tokens += int(outcome.tokens)
            self._words += int(outcome.words)
            self._norm = outcome.norm

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._since
        if self.cpu_seconds is not None:
            self.cpu_seconds += time.thread_time() - self._cpu_since

    @contextmanager
    def compiling(self, learner: Learner) -> Iterator[None]:
        """Around an update: counts its time as compilation if a new version was compiled in it.

        The update itself takes a hundredth of that time or less, and on a GPU the host does not
        wait for it.
        """
        before, start, cpu_start = learner.num_versions, time.perf_counter(), time.thread_time()
        yield
        if learner.num_versions > before:
            self.compile_seconds += time.perf_counter() - start
            self._cpu_since += time.thread_time() - cpu_start

    def go_on(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()

    @property
    def since_report(self) -> SinceReport:
        """What the next summary will be made of; read it between `pause` and `go_on`."""
        return SinceReport(
            updates=self._updates,
            nll=self._nll,
            tokens=self._tokens,
            words=self._words,
            grad_norm=self._norm,
            seconds=self.seconds - self._from,
            waited=self.waited,
        )

    def summary(self) -> Summary:
        """The numbers since the last summary; call between `pause` and `go_on`."""
        since = self.since_report
        elapsed = max(since.seconds, 1e-9)
        self._start_again(SinceReport())
        return Summary(
            sums=Sums(since.nll, since.tokens, since.words),
            grad_norm=since.grad_norm if since.tokens else math.nan,
            tokens_per_second=since.tokens / elapsed,
            seconds_per_update=elapsed / max(since.updates, 1),
            data_share=since.waited / elapsed,
        )
