"""What a person sees of a study: a table of all members on a terminal, plain lines elsewhere.

The trainer's own lines go into each member's `output.txt`. How far a member is, is read from its
log, which every run writes; so nothing here needs the trainer's help. How far scoring is, scoring
tells whoever watches.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from rich.console import Console, JustifyMethod, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zipflm.analysis.study import Study
from zipflm.analysis.tables import Column, columns, duration, number
from zipflm.comparison.plan import Plan
from zipflm.evaluation.watching import watched_by
from zipflm.runs.records import Report, Validation
from zipflm.terminal import one_line
from zipflm.training import advice

_QUARTERS = 4
_OVER = ("done", "failed", "stopped", "not trained")
"""Stages after which a member does not go on."""
_LINES_AROUND = 3
"""Of a terminal, besides the members: titles, the line below the table, the cursor's."""
_UNLIMITED = 1_000
"""Columns of an output that is no terminal."""


@dataclass
class State:
    """Where one member stands."""

    plan: Plan
    stage: str = "waiting"
    update: int = 0
    loss: float | None = None
    """Nats per word of the last report."""
    perplexity: float | None = None
    validated: int = 0
    """The update of that perplexity."""
    is_part: bool = False
    """It is of a part of the valid set."""
    tokens_per_second: float | None = None
    seconds: float | None = None
    task: str = ""
    """What is being scored."""
    scored: int = 0
    to_score: int = 0

    def read(self) -> None:
        """Take in what the member's log says by now."""
        for line in self.plan.run.log():
            self.update, self.seconds = line.update, line.seconds
            match line:
                case Validation():
                    self.perplexity, self.validated = line.perplexity, line.update
                    self.is_part = line.share < 1
                case Report():
                    self.loss, self.tokens_per_second = line.nats_per_word, line.tokens_per_second

    def see_scoring(self, task: str, done: int, total: int | None) -> None:
        """Take in that so many more tokens are scored."""
        if task != self.task or self.scored >= self.to_score:
            self.task, self.scored = task, 0
        self.scored, self.to_score = self.scored + done, total or 0

    @property
    def shown_stage(self) -> str:
        if self.stage != "scoring" or not self.to_score:
            return self.stage
        return f"{self.task} {min(self.scored / self.to_score, 1):.0%}"

    @cached_property
    def work(self) -> float:
        """Operations of the whole training."""
        return advice.work(self.plan.config, self.plan.data.vocabulary.counts)

    @property
    def work_left(self) -> float:
        """Of these, those of the updates that are not done; none of one that will not go on."""
        if self.stage in _OVER:
            return 0.0
        return self.work * max(1 - self.update / _max_updates(self.plan), 0.0)


class Display:
    """Shows all members while `shown` lasts; `enter` says what the current one does."""

    def __init__(self, plans: Sequence[Plan], stream: IO[str], is_silent: bool) -> None:
        self.states: dict[Path, State] = {plan.run.path: State(plan) for plan in plans}
        self._console = Console(file=stream)
        self._is_silent = is_silent
        self._current: State | None = None
        self._quarters = 0
        self._ends = threading.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw a table twice a second on a terminal; elsewhere look for news of a line's worth."""
        if not self._is_silent:
            for line in self.forewarnings():
                print(one_line(line), file=self._console.file, flush=True)
        with self._drawn(), watched_by(self._see_scoring):
            yield

    def forewarnings(self) -> list[str]:
        """What to know before hours go by: of the members' schedules, and of the time it takes."""
        states = list(self.states.values())
        for state in states:
            state.read()
        found = [doubt for state in states for doubt in advice.doubts(state.plan.config)]
        what = "this study" if len(states) > 1 else "this member"
        slow = advice.slowness(sum(state.work_left for state in states), what)
        lines = [*dict.fromkeys(found), slow]
        return [f"warning: {line}" for line in lines if line is not None]

    def _see_scoring(self, task: str, done: int, total: int | None) -> None:
        if self._current is not None and self._current.stage == "scoring":
            self._current.see_scoring(task, done, total)

    @contextmanager
    def _drawn(self) -> Iterator[None]:
        if self._is_silent:
            yield
        elif self._console.is_terminal:
            with Live(
                get_renderable=self.table,
                console=self._console,
                refresh_per_second=2,
                redirect_stdout=False,
                redirect_stderr=False,
            ):
                self._console.show_cursor(True)  # a signal may end the program at any moment
                yield
        else:
            watcher = threading.Thread(target=self._watch, daemon=True)
            watcher.start()
            try:
                yield
            finally:
                self._ends.set()
                watcher.join()

    def enter(self, plan: Plan, stage: str) -> None:
        """The member begins a stage: training, scoring, done, or a problem."""
        state = self.states[plan.run.path]
        state.stage = stage
        state.read()
        self._current, self._quarters = state, _QUARTERS * state.update // _max_updates(plan)
        if not self._is_silent and not self._console.is_terminal:
            self._say(state)

    def _watch(self) -> None:
        while not self._ends.wait(1.0):
            state = self._current
            if state is None or state.stage != "training":
                continue
            state.read()
            quarters = _QUARTERS * state.update // _max_updates(state.plan)
            if self._quarters < quarters < _QUARTERS:
                self._quarters = quarters
                self._say(state)

    def _say(self, state: State) -> None:
        place = list(self.states.values()).index(state) + 1
        parts = [f"[{place}/{len(self.states)}] {_name(state.plan)}: {state.stage}"]
        if state.update:
            parts.append(f"update {state.update}/{_max_updates(state.plan)}")
        if state.perplexity is not None:
            when = "" if state.validated == state.update else f" after {state.validated}"
            about = "about " if state.is_part else ""
            parts.append(f"valid perplexity {about}{number(state.perplexity)}{when}")
        if state.seconds is not None:
            parts.append(duration(state.seconds))
        if (left := self.left()) is not None and state.stage not in _OVER:
            parts.append(f"about {left} of training left in all")
        print(one_line(", ".join(parts)), file=self._console.file, flush=True)

    def table(self) -> Table:
        """All members, the current one as its log has it by now."""
        if self._current is not None and self._current.stage == "training":
            self._current.read()
        states = self._in_sight()
        rows = [_cells(state) for state in states]
        found = [
            _Column(title, [row[title] for row in rows], title not in ("model", "", "stage"))
            for title in rows[0]
        ]
        table = _fitting(found, ("", "tokens/s", "loss", "time"), self._console)
        for row, state in zip(table.rows, states, strict=True):
            row.style = None if state.update else "dim"
        table.caption, table.caption_justify = self._caption(len(states)), "left"
        return table

    def _caption(self, shown: int) -> str | None:
        """What does not fit into the table: the members out of sight, and the time left."""
        parts = []
        if shown < len(self.states):
            done = sum(state.stage == "done" for state in self.states.values())
            parts.append(f"{shown} of {len(self.states)} members; {done} are done")
        if (left := self.left()) is not None:
            parts.append(f"about {left} of training left in all")
        return "; ".join(parts) or None

    def left(self) -> str | None:
        """How long the members still have to train, by the operations that they need and the time
        that those took which are done; None before anything is known, and when all have trained."""
        states = list(self.states.values())
        speed, work_left = measured_speed(states), sum(state.work_left for state in states)
        return advice.in_words(work_left / speed) if speed and work_left else None

    def _in_sight(self) -> list[State]:
        """All members, or as many as the terminal has lines for, the current one among them."""
        states = list(self.states.values())
        room = max(1, self._console.height - _LINES_AROUND)
        place = states.index(self._current) if self._current else 0
        first = max(0, min(place - room // 2, len(states) - room))
        return states[first : first + room]


def measured_speed(states: Sequence[State]) -> float | None:
    """Operations per second of what is trained of these; None if nothing is."""
    measured = [state for state in states if state.seconds and state.update]
    done = sum(s.work * min(s.update / _max_updates(s.plan), 1) for s in measured)
    seconds = sum(state.seconds or 0.0 for state in measured)
    return done / seconds if done else None


def print_plans(plans: Sequence[Plan], speed: float, basis: str, stream: IO[str]) -> None:
    """What a study would train; `speed` is in operations per second, and `basis` says whence."""
    states = [State(plan) for plan in plans]
    for state in states:
        state.read()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("model", "parameters", "updates", "done", "tokens per update", "time left"):
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for state in states:
        config = state.plan.config
        numbers = (
            config.num_params(),
            _max_updates(state.plan),
            state.update,
            config.training.tokens_per_update,
        )
        name = f"{_name(state.plan)} {state.plan.setting}".strip()
        left = duration(state.work_left / speed)
        table.add_row(Text(one_line(name)), *(f"{n:,}" for n in numbers), left)
    Console(file=stream, width=_UNLIMITED).print(table)
    total = advice.in_words(sum(state.work_left for state in states) / speed)
    print(
        f"{len(states)} trainings, about {total} in all ({basis}); validation, compilation and "
        "scoring come on top. Nothing was written.",
        file=stream,
    )


def _cells(state: State) -> dict[str, RenderableType]:
    total = _max_updates(state.plan)
    return {
        "model": _name(state.plan),
        "": ProgressBar(total=total, completed=state.update, width=20),
        "update": f"{state.update}/{total}",
        "loss": number(state.loss, 3),
        "valid": number(state.perplexity, 1),
        "tokens/s": number(state.tokens_per_second, 0),
        "time": duration(state.seconds),
        "stage": state.shown_stage,
    }


@dataclass(frozen=True)
class _Column:
    title: str
    cells: Sequence[RenderableType]
    is_number: bool = True


def _fitting(columns: Sequence[_Column], expendable: Sequence[str], console: Console) -> Table:
    """A table as wide as the terminal at most: columns are left out, in the order of `expendable`,
    because a number that is cut is another number."""
    for count in range(len(expendable) + 1):
        kept = [column for column in columns if column.title not in expendable[:count]]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in kept:
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(column.title, justify=justify, no_wrap=True)
        for cells in zip(*(column.cells for column in kept), strict=True):
            # As text: a name in brackets is no markup of rich's.
            table.add_row(*(Text(one_line(c)) if isinstance(c, str) else c for c in cells))
        wished = Measurement.get(console, console.options.update(max_width=_UNLIMITED), table)
        if wished.maximum <= console.width:
            break
    return table


def _name(plan: Plan) -> str:
    return plan.label if plan.seed == 1 else f"{plan.label} seed {plan.seed}"


def _max_updates(plan: Plan) -> int:
    return plan.config.training.max_updates


def print_table(study: Study, stream: IO[str] | None = None) -> None:
    """The comparison on the terminal: what fits into it, the perplexities before all else."""
    file = sys.stdout if stream is None else stream
    console = Console(file=file, width=None if file.isatty() else _UNLIMITED)
    shown = [c for c in columns(study) if c.title not in ("input", "decoder", "output")]
    found = [
        _Column(_title(column), [column.text(row) for row in study.rows], column.is_number)
        for column in shown
    ]
    others = [_title(c) for c in reversed(shown) if c.is_number and c.group != "perplexity"]
    of_others = [_title(c) for c in shown if c.group == "perplexity" and study.split not in c.title]
    table = _fitting(found, [*others, *of_others], console)
    print(one_line(study.title), file=file)
    # Should the terminal be too narrow even so, it breaks lines and cuts nothing.
    Console(file=file, width=_UNLIMITED).print(table)
    if len(table.columns) < len(found):
        print("more columns are in the report", file=file)
    # Not by the console, which would break the line inside a path.
    for row in study.rows:
        if row.problem:
            print(one_line(f"{row.label}: {row.problem}"), file=file)
        for doubt in row.doubts:
            print(one_line(f"{row.label}: {doubt}"), file=file)


def _title(column: Column) -> str:
    return f"{column.group}\n{column.title}" if column.group else column.title
