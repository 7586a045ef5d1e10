"""The terminal output of a study: a live table of all members, or plain lines where there is no
terminal, and the comparison at its end.

The trainer's own lines go into each member's `output-0.txt`; progress is read from its log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zipflm.evaluation.scoring import watched_by
from zipflm.messages import one_line
from zipflm.runs.records import LogLine, Report, Validation
from zipflm.studies.plan import Plan
from zipflm.studies.study import Study
from zipflm.studies.tables import Column, columns, duration, number
from zipflm.training import throughput

_OVER = ("done", "failed", "stopped", "not trained")
"""Stages after which a member does not go on."""
_LINES_AROUND = 3
"""Lines of a terminal besides the members: titles, the caption, the cursor's."""
_UNLIMITED = 1_000
"""Columns of an output that is no terminal."""


@dataclass
class State:
    """Progress of one member."""

    plan: Plan
    stage: str = "waiting"
    last: LogLine | None = None
    report: Report | None = None
    validation: Validation | None = None
    task: str = ""
    """What is being scored, of `to_score` tokens."""
    scored: int = 0
    to_score: int = 0

    def read(self) -> None:
        """Read the member's log again."""
        for line in self.plan.run.log():
            self.last = line
            if isinstance(line, Report):
                self.report = line
            else:
                self.validation = line

    @property
    def name(self) -> str:
        plan = self.plan
        return one_line(plan.label if plan.seed == 1 else f"{plan.label} seed {plan.seed}")

    @property
    def update(self) -> int:
        return self.last.update if self.last else 0

    @property
    def max_updates(self) -> int:
        return self.plan.config.training.max_updates

    @property
    def seconds(self) -> float | None:
        return self.last.seconds if self.last else None

    @cached_property
    def work(self) -> float:
        """Operations of the whole training."""
        return throughput.work(self.plan.config, self.plan.data.vocabulary.counts)

    @property
    def work_left(self) -> float:
        return 0.0 if self.stage in _OVER else self.work - self.work_done

    @property
    def work_done(self) -> float:
        return self.work * min(self.update / self.max_updates, 1.0)

    def cells(self) -> dict[str, RenderableType]:
        """The member's row in the live table."""
        stage = self.stage
        if stage == "scoring" and self.to_score:
            stage = f"{self.task} {min(self.scored / self.to_score, 1):.0%}"
        return {
            "model": self.name,
            "": ProgressBar(total=self.max_updates, completed=self.update, width=20),
            "update": f"{self.update}/{self.max_updates}",
            "loss": number(self.report.nats_per_word if self.report else None, 3),
            "valid": number(self.validation.perplexity if self.validation else None, 1),
            "tokens/s": number(self.report.tokens_per_second if self.report else None, 0),
            "time": duration(self.seconds),
            "stage": stage,
        }


class Display:
    """Shows all members while `shown` lasts; `enter` sets the stage of one."""

    def __init__(self, plans: Sequence[Plan], stream: IO[str], is_silent: bool) -> None:
        self.states: dict[Path, State] = {plan.run.path: State(plan) for plan in plans}
        self.console = Console(file=stream)
        self._is_silent = is_silent
        self._current: State | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Redraw the table twice a second on a terminal; elsewhere `enter` prints lines."""
        if not self._is_silent:
            for line in self._warnings():
                self._print(f"warning: {line}")
        live = Live(
            get_renderable=self.table,
            console=self.console,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        is_drawn = self.console.is_terminal and not self._is_silent
        with live if is_drawn else nullcontext(), watched_by(self._see_scoring):
            if is_drawn:
                self.console.show_cursor(True)  # a signal may end the program at any moment
            yield

    def enter(self, plan: Plan, stage: str) -> None:
        """The member begins a stage: training, scoring, done, or a problem."""
        state = self._current = self.states[plan.run.path]
        state.stage = stage
        state.read()
        if not self._is_silent and not self.console.is_terminal:
            self._print(self._line(state))

    def table(self) -> Table:
        """The live table, as far as the terminal has lines for it."""
        states, current = list(self.states.values()), self._current
        if current is not None and current.stage == "training":
            current.read()
        room = max(1, self.console.height - _LINES_AROUND)
        place = states.index(current) if current else 0
        first = max(0, min(place - room // 2, len(states) - room))
        in_sight = states[first : first + room]
        rows = [state.cells() for state in in_sight]
        cells = {title: [row[title] for row in rows] for title in rows[0]}
        words = ("model", "", "stage")
        table = _fitting(cells, words, ("", "tokens/s", "loss", "time"), self.console)
        caption = []
        if len(in_sight) < len(states):
            done = sum(state.stage == "done" for state in states)
            caption.append(f"{len(in_sight)} of {len(states)} members; {done} are done")
        if (left := self.left()) is not None:
            caption.append(f"about {left} of training left in all")
        table.caption, table.caption_justify = "; ".join(caption) or None, "left"
        return table

    def left(self) -> str | None:
        """Training time left in all members, from the speed of what is trained; None if unknown."""
        states = list(self.states.values())
        speed, work_left = measured_speed(states), sum(state.work_left for state in states)
        return throughput.in_words(work_left / speed) if speed and work_left else None

    def _line(self, state: State) -> str:
        place = list(self.states.values()).index(state) + 1
        parts = [f"[{place}/{len(self.states)}] {state.name}: {state.stage}"]
        if state.update:
            parts.append(f"update {state.update}/{state.max_updates}")
        if state.validation is not None:
            about = "about " if state.validation.share < 1 else ""
            parts.append(f"valid perplexity {about}{number(state.validation.perplexity)}")
        if state.seconds is not None:
            parts.append(duration(state.seconds))
        if state.stage not in _OVER and (left := self.left()) is not None:
            parts.append(f"about {left} of training left in all")
        return ", ".join(parts)

    def _warnings(self) -> list[str]:
        """Of a training of hours on a CPU."""
        states = list(self.states.values())
        for state in states:
            state.read()
        what = "this study" if len(states) > 1 else "this member"
        slow = throughput.slowness(sum(state.work_left for state in states), what)
        return [] if slow is None else [slow]

    def _see_scoring(self, task: str, done: int, total: int | None) -> None:
        state = self._current
        if state is None or state.stage != "scoring":
            return
        if task != state.task or state.scored >= state.to_score:
            state.task, state.scored = task, 0
        state.scored, state.to_score = state.scored + done, total or 0

    def _print(self, text: str) -> None:
        # Not by the console, which would break the line inside a path.
        print(one_line(text), file=self.console.file, flush=True)


def measured_speed(states: Sequence[State]) -> float | None:
    """Operations per second of all training so far; None before there is any."""
    done = sum(state.work_done for state in states)
    seconds = sum(state.seconds or 0.0 for state in states)
    return done / seconds if done and seconds else None


def print_plans(plans: Sequence[Plan], speed: float, basis: str, stream: IO[str]) -> None:
    """The trainings of a dry run; `speed` is in operations per second, `basis` its origin."""
    states = [State(plan) for plan in plans]
    for state in states:
        state.read()
    cells: dict[str, Sequence[RenderableType]] = {
        "model": [f"{state.name} {state.plan.setting}".strip() for state in states],
        "parameters": [f"{state.plan.config.num_params():,}" for state in states],
        "updates": [f"{state.max_updates:,}" for state in states],
        "done": [f"{state.update:,}" for state in states],
        "tokens per update": [
            f"{state.plan.config.training.tokens_per_update:,}" for state in states
        ],
        "time left": [duration(state.work_left / speed) for state in states],
    }
    Console(file=stream, width=_UNLIMITED).print(_table(cells, words=("model",)))
    total = throughput.in_words(sum(state.work_left for state in states) / speed)
    print(
        f"{len(states)} trainings, about {total} in all ({basis}); validation, compilation and "
        "scoring come on top. Nothing was written.",
        file=stream,
    )


def print_table(study: Study, stream: IO[str] | None = None) -> None:
    """The comparison: on a terminal the columns that fit, the perplexities before all else."""
    file = sys.stdout if stream is None else stream
    console = Console(file=file, width=None if file.isatty() else _UNLIMITED)
    shown = [c for c in columns(study) if c.title not in ("input", "decoder", "output")]
    cells = {_title(column): [column.text(row) for row in study.rows] for column in shown}
    words = [_title(column) for column in shown if not column.is_number]
    others = [_title(c) for c in reversed(shown) if c.is_number and c.group != "perplexity"]
    of_others = [_title(c) for c in shown if c.group == "perplexity" and study.split not in c.title]
    table = _fitting(cells, words, [*others, *of_others], console)
    print(one_line(study.title), file=file)
    # Should the terminal be too narrow even so, it breaks lines and cuts nothing.
    Console(file=file, width=_UNLIMITED).print(table)
    if len(table.columns) < len(cells):
        print("more columns are in the report", file=file)
    for row in study.rows:
        for text in (row.problem, *row.doubts):
            if text:
                print(one_line(f"{row.label}: {text}"), file=file)


def _title(column: Column) -> str:
    return f"{column.group}\n{column.title}" if column.group else column.title


def _fitting(
    cells: Mapping[str, Sequence[RenderableType]],
    words: Sequence[str],
    expendable: Sequence[str],
    console: Console,
) -> Table:
    """A table of columns by title that fits the terminal: columns are left out, in the order of
    `expendable`, because a number that is cut is another number."""
    for count in range(len(expendable) + 1):
        kept = {title: cells[title] for title in cells if title not in expendable[:count]}
        table = _table(kept, words)
        wished = Measurement.get(console, console.options.update(max_width=_UNLIMITED), table)
        if wished.maximum <= console.width:
            break
    return table


def _table(cells: Mapping[str, Sequence[RenderableType]], words: Sequence[str]) -> Table:
    """Columns by title, `words` to the left and numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in cells:
        table.add_column(title, justify="left" if title in words else "right", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        # As text: a name in brackets is no markup of rich's.
        table.add_row(*(Text(one_line(c)) if isinstance(c, str) else c for c in row))
    return table
