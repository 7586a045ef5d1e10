"""What a person sees of a study: a table of all members on a terminal, plain lines elsewhere.

The trainer's own lines go into each member's `output.txt`. How far a member is, is read from its
log, which every run writes; so nothing here needs the trainer's help.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from zipflm.analysis.study import Study
from zipflm.analysis.tables import columns, duration, number
from zipflm.comparison.plan import Plan
from zipflm.training.run_folder import read_log

_QUARTERS = 4


@dataclass
class State:
    """Where one member stands."""

    plan: Plan
    stage: str = "waiting"
    update: int = 0
    loss: float | None = None
    perplexity: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None

    def read(self) -> None:
        """Take in what the member's log says by now."""
        if not (self.plan.folder / "log.jsonl").is_file():
            return
        for entry in read_log(self.plan.folder):
            self.update, self.seconds = entry["update"], entry["seconds"]
            if "valid" in entry:
                self.perplexity = entry["valid"]["perplexity"]
            else:
                self.loss, self.tokens_per_second = entry["loss"], entry["tokens_per_second"]


class Display:
    """Shows all members while `shown` lasts; `enter` says what the current one does."""

    def __init__(self, plans: Sequence[Plan], stream: IO[str], is_silent: bool) -> None:
        self.states = {plan.folder: State(plan) for plan in plans}
        self._console = Console(file=stream)
        self._is_silent = is_silent
        self._current: State | None = None
        self._quarters = 0
        self._ends = threading.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw a table twice a second on a terminal; elsewhere look for news of a line's worth."""
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
        state = self.states[plan.folder]
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
            parts.append(f"valid perplexity {number(state.perplexity)}")
        if state.seconds is not None:
            parts.append(duration(state.seconds))
        print(", ".join(parts), file=self._console.file, flush=True)

    def table(self) -> Table:
        """All members, the current one as its log has it by now."""
        if self._current is not None and self._current.stage == "training":
            self._current.read()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("model", "", "update", "loss", "valid", "tokens/s", "time", "stage"):
            table.add_column(title, justify="left" if title in ("model", "", "stage") else "right")
        for state in self.states.values():
            table.add_row(*_cells(state), style=None if state.update else "dim")
        return table


def _cells(state: State) -> list[Any]:
    total = _max_updates(state.plan)
    return [
        _name(state.plan),
        ProgressBar(total=total, completed=state.update, width=20),
        f"{state.update}/{total}",
        number(state.loss, 3),
        number(state.perplexity, 1),
        number(state.tokens_per_second, 0),
        duration(state.seconds),
        state.stage,
    ]


def _name(plan: Plan) -> str:
    return plan.label if plan.seed == 1 else f"{plan.label} seed {plan.seed}"


def _max_updates(plan: Plan) -> int:
    return plan.config.training.max_updates


def print_table(study: Study, stream: IO[str] | None = None) -> None:
    """The comparison on the terminal: what fits into it."""
    shown = [c for c in columns(study) if c.title not in ("input", "decoder", "output")]
    table = Table(title=study.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in shown:
        title = f"{column.group}\n{column.title}" if column.group else column.title
        table.add_column(title, justify="right" if column.is_number else "left")
    for row in study.rows:
        table.add_row(*(column.text(row) for column in shown))
    stream = stream or sys.stdout
    # Wide enough for all columns where the output is a file.
    width = None if stream.isatty() else 120
    console = Console(file=stream, width=width)
    console.print(table)
    for row in study.rows:
        if row.problem:
            console.print(f"{row.label}: {row.problem}", markup=False, highlight=False)
