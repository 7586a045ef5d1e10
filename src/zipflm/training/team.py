"""Several processes that succeed or fail together.

A process that fails leaves the others waiting for it in a collective operation, for half an hour
unless somebody ends them. So the processes tell each other how they fared, at the end of each piece
of work, through a store that all of them can reach. When everybody has answered, everybody goes on
with the same answer. A process that has failed does not wait long for the others: those that do not
answer are stuck, and a thread in each of them looks out for that. They all end then, at once and
with the reason on the first one's stderr.

torch's own collectives would not do: a process in one of them cannot be reached any more, and
waiting longer than their time limit, as for a first process that scores alone, is an error there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from zipflm.terminal import one_line
from zipflm.troubles import in_words

PATIENCE = 10.0
"""Seconds that a process has to answer after another one has failed."""
_LONGER = 5.0
"""Seconds more that the one that failed waits, so that the first process can say so itself."""
_GRACE = 5.0
"""Seconds that a process has, after SIGTERM, to say what went wrong in it, or what it found."""
_PAUSE = 0.2
"""Seconds between two looks at the store."""


class FailedElsewhere(ValueError):
    """Another process has failed; the message says which, and why."""


@dataclass(frozen=True)
class _Outcome:
    """How a process fared: its problem, if any, and whether it leaves because of that."""

    problem: str
    leaves: bool


class Team:
    """All processes that were started together, as one of them sees it."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._store = _connect()
        self._round = 0
        """Number of the next agreement; the watching thread reads it too."""
        self._problem = ""
        """What went wrong here, while the others are being told."""
        self._is_terminated = False
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def leaving_together(self) -> Iterator[None]:
        """At the end wait for the others: FailedElsewhere if one of them did not get there."""
        with self._speaking_before_it_ends(), self._leaving():
            yield

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            outcomes = self._share(_Outcome(described(error), leaves=True))
            if len({outcome.problem for outcome in outcomes if outcome.problem}) > 1:
                self._end(_listed(outcomes), all_know=True)
            raise
        else:
            outcomes = self._share(_Outcome("", leaves=True))
            for rank, outcome in enumerate(outcomes):
                if outcome.problem:
                    raise FailedElsewhere(f"process {rank}: {outcome.problem}")
        finally:
            self._is_over.set()
            self._let_all_leave()

    def agree(self, problem: str) -> str:
        """The problem that all processes have, or that some have while the others got as far as
        this; empty if there is none. Every process must call this, and gets the same.

        Ends the process if the others have another problem, or do not answer.
        """
        outcomes = self._share(_Outcome(problem, leaves=False))
        problems = dict.fromkeys(outcome.problem for outcome in outcomes if outcome.problem)
        if len(problems) > 1 or any(outcome.leaves for outcome in outcomes):
            self._end(_listed(outcomes), all_know=True)
        return next(iter(problems), "")

    def _share(self, own: _Outcome) -> list[_Outcome]:
        """Tell the others; theirs and our own in the order of the processes."""
        number, self._round = self._round, self._round + 1
        keys = [f"{number}/{rank}" for rank in range(self._world_size)]
        self._problem = own.problem
        if own.problem and self._is_terminated:
            self._end(_named(self._rank, own))
        try:
            if own.problem:
                self._store.set(f"{number}/failed", _named(self._rank, own))
            self._store.set(keys[self._rank], json.dumps(asdict(own)))
            self._wait(keys, own.problem)
            self._problem = ""
            return [_Outcome(**json.loads(self._store.get(key))) for key in keys]
        except RuntimeError as error:  # the process that kept the store has gone
            self._end(own.problem or f"the other processes cannot be reached ({error})")

    def _let_all_leave(self) -> None:
        """The first process may keep the store, and must not go before all have read the last
        outcomes. One that is gone does not read any more, so nobody is waited for long."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._rank}", "")
            end = time.monotonic() + PATIENCE
            keys = [f"left/{rank}" for rank in range(self._world_size)]
            while self._rank == 0 and not self._store.check(keys) and time.monotonic() < end:
                time.sleep(_PAUSE)

    def _wait(self, keys: list[str], problem: str) -> None:
        """Until everybody has answered; one that is well may score for hours, but somebody who has
        failed need not wait for those who wait for him."""
        end = time.monotonic() + PATIENCE + _LONGER if problem else float("inf")
        while missing := [rank for rank, key in enumerate(keys) if not self._store.check([key])]:
            if time.monotonic() > end:
                silent = ", ".join(map(str, missing))
                self._end(f"process {self._rank}: {problem} (no answer from process {silent})")
            time.sleep(_PAUSE)

    @contextmanager
    def _speaking_before_it_ends(self) -> Iterator[None]:
        """torchrun ends all processes with SIGTERM as soon as it sees that one has ended with an
        error. One that fails because of that may not have said so yet, and is the only one that
        can. This holds to the end of the process: an error, or the table of a study in which a
        member failed, is printed after the processes have parted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            if self._problem:
                self._end(f"process {self._rank}: {self._problem}")
            self._is_terminated = True
            timer = threading.Timer(_GRACE, os._exit, (128 + number,))
            timer.daemon = True
            timer.start()

        before = signal.signal(signal.SIGTERM, end)
        yield
        if before != signal.SIG_DFL:  # of a program that has its own idea
            signal.signal(signal.SIGTERM, before)

    def _watch(self) -> None:
        """End this process if another one has failed and the main thread does not get to answer."""
        number, since = -1, 0.0
        while not self._is_over.wait(_PAUSE):
            try:
                if not self._store.check([f"{self._round}/failed"]):
                    continue
                if number != self._round:
                    number, since = self._round, time.monotonic()
                elif time.monotonic() - since > PATIENCE:
                    reason = self._store.get(f"{number}/failed").decode()
                    if number == self._round:
                        self._end(reason, all_know=True)
            except RuntimeError:  # the process that kept the store has gone, and torchrun knows
                return

    def _end(self, reason: str, *, all_know: bool = False) -> NoReturn:
        """End the process here and now; what all processes know is for the first one to say.

        Nothing gentler would do: other threads may be inside collectives that never return, and
        torch waits for them on the way out.
        """
        error = sys.exception()
        if error is not None and not isinstance(error, ValueError | OSError):
            traceback.print_exc()  # an error of the program, not of its user
        if self._rank == 0 or not all_know:
            print(f"zipflm: {one_line(reason)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)


def described(error: BaseException) -> str:
    """An error as a reason on one line."""
    text = " ".join((in_words(error) if isinstance(error, OSError) else str(error)).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _named(rank: int, outcome: _Outcome) -> str:
    return f"process {rank}: {outcome.problem}"


def _listed(outcomes: Sequence[_Outcome]) -> str:
    return "; ".join(_named(rank, each) for rank, each in enumerate(outcomes) if each.problem)


def _connect() -> Any:
    """A connection of our own to the store through which the processes found each other: that of
    the process group may be busy waiting."""
    # torch's annotations leave its stores out.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=PATIENCE),
    )
    # torchrun keeps its store when it starts the processes once more.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"zipflm/{attempt}", store)  # type: ignore[attr-defined]
