"""How far each of several processes is, and which of them the others wait for in vain.

A process that is alive but does not come, because it was stopped, hangs on a file system that is
gone or runs in circles, leaves the others waiting in a collective operation. They cannot tell: to
them it is an operation that takes long. So every process notes where it is (`Whereabouts`), which
costs nothing, a thread of it shows that to the others now and then, and each of them looks at all
(`Lookout`). Nothing here depends on torch's own time limits, which know neither updates nor ranks.

A process counts as stalled if it shows no sign of life at all, or if it is behind the others while
nobody has moved for as long as the limit says. What may rightly take long has a longer limit; it
may also keep the other threads of a process from running, as writing a large file in one go does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from enum import IntEnum

LIMIT = 600.0
"""Seconds without progress after which processes that wait for each other give up."""
LONG = 6
"""How many times longer than that a process may start, compile, save or write."""
NO_LIMIT = 7 * 24 * 3600.0
"""Seconds that a collective operation may take where nobody has set a limit."""


class Stage(IntEnum):
    """What a process does, in the order in which a run does it after an update."""

    OTHER = 0
    VALIDATING = 1
    SAVING = 2
    READING = 3
    UPDATING = 4
    COMPILING = 5
    """Also an update, the first of its kind."""


_MAY_TAKE_LONG = {Stage.OTHER, Stage.SAVING, Stage.COMPILING}
_IN_WORDS = {
    Stage.OTHER: "between two pieces of work",
    Stage.VALIDATING: "validating after update {done}",
    Stage.SAVING: "saving after update {done}",
    Stage.READING: "reading the batches of update {next}",
    Stage.UPDATING: "in update {next}",
    Stage.COMPILING: "compiling in update {next}",
}


@dataclass(frozen=True, order=True)
class Whereabouts:
    """A place on the way that all processes take; a later one is greater."""

    round: int = 0
    """Agreements so far, of which a study has two for each member."""
    update: int = -1
    """Updates done; -1 before and after training."""
    stage: Stage = Stage.OTHER
    count: int = 0
    """Batches so far, where there are many in one stage."""

    @property
    def may_take_long(self) -> bool:
        return self.stage in _MAY_TAKE_LONG

    def __str__(self) -> str:
        return _IN_WORDS[self.stage].format(done=self.update, next=self.update + 1)


@dataclass
class Notebook:
    """Where this process is; its main thread writes, the thread that shows it to others reads."""

    here: Whereabouts = field(default_factory=Whereabouts)

    def note(self, stage: Stage, update: int = -1) -> None:
        """This is being done now."""
        self.here = Whereabouts(self.here.round, update, stage)

    def count(self) -> None:
        """One more batch of the same."""
        here = self.here
        self.here = Whereabouts(here.round, here.update, here.stage, here.count + 1)

    def turn(self, round: int) -> None:
        """The processes agree on something, and something else begins."""
        self.here = Whereabouts(round)


def shown(here: Whereabouts, beat: int) -> str:
    """As the others read it; `beat` changes with every look, as a sign of life."""
    return json.dumps([beat, *astuple(here)])


@dataclass
class _Seen:
    beat: int
    here: Whereabouts
    alive: float
    """When it was last seen to be alive, by the clock of the one who looks."""


class Lookout:
    """What one process knows of all; no clock but its own is needed."""

    def __init__(self, limit: float, now: float) -> None:
        self._limit = limit
        self._seen: dict[int, _Seen] = {}
        self._moved = self._begun = now

    def see(self, states: Sequence[str | None], now: float) -> tuple[str, list[int]] | None:
        """Look at what the processes have shown (None: nothing yet). Why to give up, and because
        of which processes, if it is time to."""
        for rank, state in enumerate(states):
            if state is not None:
                self._see_one(rank, state, now)
        silent = [rank for rank in range(len(states)) if self._is_silent(rank, now)]
        if silent:
            return self._no_sign_of_life(silent, now), silent
        return self._nobody_moves(now)

    def _see_one(self, rank: int, state: str, now: float) -> None:
        beat, round, update, stage, count = json.loads(state)
        here = Whereabouts(round, update, Stage(stage), count)
        before = self._seen.get(rank)
        if before is None or before.here != here:
            self._moved = now
        if before is None or before.beat != beat:
            self._seen[rank] = _Seen(beat, here, now)

    def _is_silent(self, rank: int, now: float) -> bool:
        if rank not in self._seen:
            return now - self._begun > self._limit
        return now - self._seen[rank].alive > self._limit_of([rank])

    def _limit_of(self, ranks: Sequence[int]) -> float:
        """How long to wait for processes that are where these are."""
        may_take_long = any(self._seen[rank].here.may_take_long for rank in ranks)
        return self._limit * (LONG if may_take_long else 1)

    def _nobody_moves(self, now: float) -> tuple[str, list[int]] | None:
        if not self._seen:
            return None
        farthest = max(seen.here for seen in self._seen.values())
        behind = [rank for rank, seen in self._seen.items() if seen.here < farthest]
        awaited = behind or sorted(self._seen)
        waited = now - self._moved
        if waited <= self._limit_of(awaited):
            return None
        what = f"no progress for {waited:.0f} s"
        if not behind:
            return f"{what}: {_named(awaited)} hang{_s(awaited)} {farthest}", awaited
        places = "; ".join(
            f"{_named([rank])} is {self._seen[rank].here}" for rank in behind[:_MOST_NAMED]
        )
        return f"{what}: the others, {farthest}, wait for {_named(behind)}: {places}", behind

    def _no_sign_of_life(self, silent: list[int], now: float) -> str:
        places = "; ".join(
            f"{_named([rank])} was last seen {self._seen[rank].here}"
            for rank in silent[:_MOST_NAMED]
            if rank in self._seen
        )
        since = min(self._seen[r].alive if r in self._seen else self._begun for r in silent)
        reason = f"no sign of life from {_named(silent)} for {now - since:.0f} s"
        return f"{reason}: {places}" if places else reason


_MOST_NAMED = 8


def _named(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > _MOST_NAMED else ""
    return (
        f"process{'' if len(ranks) == 1 else 'es'} "
        + ", ".join(map(str, ranks[:_MOST_NAMED]))
        + more
    )


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""
