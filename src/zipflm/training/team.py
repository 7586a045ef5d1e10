"""Several processes that succeed or fail together.

A process that fails leaves the others waiting for it in a collective operation, for hours unless
somebody ends them. So the processes tell each other how they fared, at the end of each piece of
work, through a store that all of them can reach. When everybody has answered, everybody goes on
with the same answer. A process that has failed does not wait long for the others: those that do not
answer are stuck, and a thread in each of them looks out for that. They all end then, at once and
with the reason on the first one's stderr. The same thread looks out for processes that have not
failed and yet do not come (`whereabouts`).

torch's own collectives would not do: a process in one of them cannot be reached any more, and
waiting longer than their time limit, as for a first process that writes alone, is an error there.

Exit statuses are those of the command line: 2 if it was the input, and 1 for everything else, so
that whoever starts processes again knows when that is of use.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from zipflm.terminal import one_line
from zipflm.training.whereabouts import LIMIT, Lookout, Notebook, Stage, shown
from zipflm.troubles import in_words

PATIENCE = 10.0
"""Seconds that a process has to answer after another one has failed."""
_LONGER = 5.0
"""Seconds more that the one that failed waits, so that the first process can say so itself."""
_GRACE = 5.0
"""Seconds that a process has, after SIGTERM, to say what went wrong in it, or what it found."""
_PAUSE = 0.2
"""Seconds between two looks at the store."""
_LOOKS = 20
"""How often, within the limit, a process shows where it is and looks where the others are."""
_STALLED = "stalled"
_REMEDY = (
    "the run goes on from its newest checkpoint with --resume; processes that are merely slow need "
    "a higher --stall-seconds"
)
_FAILED, _BAD_INPUT = 1, 2


class FailedElsewhere(ValueError):
    """Another process has failed; the message says which, and why."""

    def __init__(self, message: str, is_said_elsewhere: bool) -> None:
        super().__init__(message)
        self.is_said_elsewhere = is_said_elsewhere


@dataclass(frozen=True)
class _Outcome:
    """How a process fared: its problem, if any, and whether it leaves because of that."""

    problem: str
    leaves: bool
    status: int = _FAILED
    """With which a process ends because of the problem."""


@dataclass(frozen=True)
class _Alarm:
    """Why all processes are to end, who says so to the user, and with which exit status."""

    reason: str
    speaker: int = 0
    status: int = _FAILED


class Team:
    """All processes that were started together, as one of them sees it."""

    def __init__(self, rank: int, world_size: int, attempt: str, limit: float = LIMIT) -> None:
        """`attempt` is the name that the processes agreed on (see `meeting`); `limit` is for how
        many seconds nobody may make any progress, 0 for no limit."""
        self._rank, self._world_size, self._limit = rank, world_size, limit
        self._store = _connect(attempt)
        self._notebook = Notebook()
        self._beats = itertools.count()
        self._round = 0
        """Number of the next agreement; the watching thread reads it too."""
        self._problem = ""
        """What went wrong here, while the others are being told."""
        self._status = _FAILED
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
            outcomes = self._share(_Outcome(described(error), leaves=True, status=_status(error)))
            if len({outcome.problem for outcome in outcomes if outcome.problem}) > 1:
                self._end_all(outcomes)
            # For the command line: the first process has the same error, or is told of this one.
            error.is_said_elsewhere = self._rank != 0  # type: ignore[attr-defined]
            raise
        else:
            outcomes = self._share(_Outcome("", leaves=True))
            if any(outcome.problem and outcome.status != _BAD_INPUT for outcome in outcomes):
                self._end_all(outcomes)
            for rank, outcome in enumerate(outcomes):
                if outcome.problem:
                    raise FailedElsewhere(_named(rank, outcome.problem), self._rank != 0)
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
            self._end_all(outcomes)
        return next(iter(problems), "")

    def _share(self, own: _Outcome) -> list[_Outcome]:
        """Tell the others; theirs and our own in the order of the processes."""
        number, self._round = self._round, self._round + 1
        self._notebook.turn(self._round)
        keys = [f"{number}/{rank}" for rank in range(self._world_size)]
        self._problem, self._status = own.problem, own.status
        alarm = _Alarm(_named(self._rank, own.problem), self._rank, own.status)
        if own.problem and self._is_terminated:
            self._end(alarm)
        try:
            if own.problem:
                self._store.set(f"{number}/failed", json.dumps(asdict(replace(alarm, speaker=0))))
            self._store.set(keys[self._rank], json.dumps(asdict(own)))
            self._wait(keys, own)
            self._problem = ""
            return [_Outcome(**json.loads(self._store.get(key))) for key in keys]
        except RuntimeError as error:  # the process that kept the store has gone
            reason = own.problem or f"the other processes cannot be reached ({error})"
            self._end(_Alarm(reason, self._rank, own.status))

    def _let_all_leave(self) -> None:
        """Nobody goes before all have read the last outcomes: torchrun would end the others, and
        the first process may keep the store. One that is gone does not read any more, so nobody is
        waited for long."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._rank}", "")
            end = time.monotonic() + PATIENCE
            keys = [f"left/{rank}" for rank in range(self._world_size)]
            while not self._store.check(keys) and time.monotonic() < end:
                time.sleep(_PAUSE)

    def _wait(self, keys: list[str], own: _Outcome) -> None:
        """Until everybody has answered; one that is well may score for hours, but somebody who has
        failed need not wait for those who wait for him."""
        end = time.monotonic() + PATIENCE + _LONGER if own.problem else float("inf")
        while not self._store.check(keys):
            if time.monotonic() > end:
                missing = [str(r) for r, key in enumerate(keys) if not self._store.check([key])]
                reason = f"{own.problem} (no answer from process {', '.join(missing)})"
                self._end(_Alarm(_named(self._rank, reason), self._rank, own.status))
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
                self._end(_Alarm(_named(self._rank, self._problem), self._rank, self._status))
            self._is_terminated = True
            timer = threading.Timer(_GRACE, os._exit, (128 + number,))
            timer.daemon = True
            timer.start()

        before = signal.signal(signal.SIGTERM, end)
        yield
        if before != signal.SIG_DFL:  # of a program that has its own idea
            signal.signal(signal.SIGTERM, before)

    def _watch(self) -> None:
        """End this process if another one has failed and the main thread does not get to answer, or
        if one of them does not come."""
        number, since = -1, 0.0
        lookout, next_look = Lookout(self._limit, time.monotonic()), 0.0
        while not self._is_over.wait(_PAUSE):
            try:
                if self._store.check([_STALLED]):
                    self._end(self._alarm_at(_STALLED))
                if self._limit and time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._limit / _LOOKS
                    self._show()
                    self._look(lookout)
                if not self._store.check([f"{self._round}/failed"]):
                    continue
                if number != self._round:
                    number, since = self._round, time.monotonic()
                elif time.monotonic() - since > PATIENCE:
                    alarm = self._alarm_at(f"{number}/failed")
                    if number == self._round:
                        self._end(alarm)
            except RuntimeError:  # the process that kept the store has gone, and torchrun knows
                return

    def note(self, stage: Stage, update: int) -> None:
        """This process is about to do that. The others are told at once if they are to be more
        patient from here on, or less: what takes long may keep our thread from telling them."""
        before = self._notebook.here
        self._notebook.note(stage, update)
        if self._limit and self._notebook.here.may_take_long != before.may_take_long:
            with suppress(RuntimeError):  # without the store the run may still come to its end
                self._show()

    def count(self) -> None:
        """One more batch of what was noted last."""
        self._notebook.count()

    def _show(self) -> None:
        """Where this process is, for the others to see."""
        state = shown(self._notebook.here, next(self._beats))
        self._store.set(f"place/{self._rank}", state)

    def _look(self, lookout: Lookout) -> None:
        """See where all are."""
        keys = [f"place/{rank}" for rank in range(self._world_size)]
        present = keys
        if not self._store.check(keys):  # some have only just begun
            present = [key for key in keys if self._store.check([key])]
        states = dict(zip(present, self._store.multi_get(present), strict=True))
        found = lookout.see([states.get(key) for key in keys], time.monotonic())
        if found is None:
            return
        reason, ranks = found
        able = [rank for rank in range(self._world_size) if rank not in ranks]
        alarm = _Alarm(f"{reason}; {_REMEDY}", min(able, default=0))
        # Whoever is first decides what is said, and all end at the same time.
        self._store.compare_set(_STALLED, "", json.dumps(asdict(alarm)))
        self._end(self._alarm_at(_STALLED))

    def _alarm_at(self, key: str) -> _Alarm:
        return _Alarm(**json.loads(self._store.get(key)))

    def _end_all(self, outcomes: Sequence[_Outcome]) -> NoReturn:
        """End because of outcomes that everybody has, or is about to read: were one to go before,
        torchrun's SIGTERM would have another say once more what this one says."""
        self._let_all_leave()
        self._end(_alarm(outcomes))

    def _end(self, alarm: _Alarm) -> NoReturn:
        """End the process here and now; what all processes know is for one of them to say.

        Nothing gentler would do: other threads may be inside collectives that never return, and
        torch waits for them on the way out.
        """
        error = sys.exception()
        if error is not None and not isinstance(error, ValueError | OSError):
            traceback.print_exc()  # an error of the program, not of its user
        if self._rank == alarm.speaker:
            print(f"zipflm: {one_line(alarm.reason)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(alarm.status)


def described(error: BaseException) -> str:
    """An error as a reason on one line."""
    text = " ".join((in_words(error) if isinstance(error, OSError) else str(error)).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _status(error: BaseException) -> int:
    return _BAD_INPUT if isinstance(error, ValueError | OSError) else _FAILED


def _named(rank: int, problem: str) -> str:
    return f"process {rank}: {problem}"


def _alarm(outcomes: Sequence[_Outcome]) -> _Alarm:
    """All problems; the input's fault if every one of them is."""
    bad = {rank: each for rank, each in enumerate(outcomes) if each.problem}
    reason = "; ".join(_named(rank, each.problem) for rank, each in bad.items())
    status = min((each.status for each in bad.values()), default=_FAILED)
    return _Alarm(reason or "the processes are out of step", status=status)


def _connect(attempt: str) -> Any:
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
    return dist.PrefixStore(f"{attempt}/zipflm", store)  # type: ignore[attr-defined]
