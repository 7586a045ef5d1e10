"""Sums over the updates since the last report, and what must be known of the whole run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from zipflm.runs.records import Sums
from zipflm.training.step import UpdateResult


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
    """Time counts while training only: `pause` before validating or saving, `go_on` after."""

    def __init__(self, seconds: float = 0.0, skipped: int = 0) -> None:
        self.seconds, self.skipped = seconds, skipped
        self.bad_in_a_row = 0
        self.stop = False
        self._since = time.perf_counter()
        self._start_again()

    def _start_again(self) -> None:
        self._nll = self._tokens = self._words = 0.0
        self._updates, self._from, self._norm = 0, self.seconds, 0.0
        self.waited = 0.0
        """Seconds the loop waited for data."""

    def see(self, outcomes: Iterable[UpdateResult]) -> None:
        """Take in what has arrived from the device."""
        for outcome in outcomes:
            self._updates += 1
            self.stop = self.stop or outcome.stop > 0
            if outcome.bad:
                self.skipped += 1
                self.bad_in_a_row += 1
                continue
            self.bad_in_a_row = 0
            self._nll += outcome.nll
            self._tokens += outcome.tokens
            self._words += outcome.words
            self._norm = outcome.norm

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._since

    def go_on(self) -> None:
        self._since = time.perf_counter()

    def summary(self) -> Summary:
        """The numbers since the last summary; call between `pause` and `go_on`."""
        elapsed = max(self.seconds - self._from, 1e-9)
        summary = Summary(
            sums=Sums(self._nll, int(self._tokens), int(self._words)),
            grad_norm=self._norm,
            tokens_per_second=self._tokens / elapsed,
            seconds_per_update=elapsed / max(self._updates, 1),
            data_share=self.waited / elapsed,
        )
        self._start_again()
        return summary
