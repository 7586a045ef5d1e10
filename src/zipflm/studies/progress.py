"""Terminal output of a study: a line about each member, updated while it is trained, and the
comparison at the end. The output of the trainer is written to `output-RANK.txt` in the run folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zipflm.messages import one_line
from zipflm.runs.records import LogLine, Report, Validation
from zipflm.studies.plan import Plan
from zipflm.studies.study import NOT_COMPILED, Study
from zipflm.studies.tables import columns, duration, number
from zipflm.training import throughput
from zipflm.training.schedule import high_end_warning

_FINAL_STAGES = ("done", "trained", "failed", "stopped", "not trained")
_TABLE_WIDTH = 1_000
"""In characters: more than any table needs, so that narrow terminals wrap lines instead of cutting
numbers."""


@dataclass
class MemberProgress:
    plan: Plan
    stage: str = "waiting"
    last: LogLine | None = None
    loss: float | None = None
    validation: Validation | None = None
    _log_size: int = 0

    def __post_init__(self) -> None:
        self.read_log()

    def read_log(self) -> None:
        path = self.plan.run.log_path
        size = path.stat().st_size if path.is_file() else 0
        if size == self._log_size:
            return
        self._log_size = size
        for line in self.plan.run.log():
            self.last = line
            if isinstance(line, Report):
                self.loss = line.nats_per_word
            else:
                self.validation = line

    @property
    def name(self) -> str:
        plan = self.plan
        seed = f"seed {plan.seed}" if plan.seed != 1 else ""
        return " ".join(part for part in (plan.label, plan.setting, seed) if part)

    @property
    def update(self) -> int:
        return self.last.update if self.last else 0

    @cached_property
    def work(self) -> float:
        """Floating-point operations of the full training."""
        return throughput.flops_left(self.plan.config, self.plan.data.vocabulary.counts)

    @property
    def work_done(self) -> float:
        return self.work * min(self.update / self.plan.updates, 1.0)

    @property
    def work_left(self) -> float:
        return 0.0 if self.stage in _FINAL_STAGES else self.work - self.work_done

    def line(self) -> str:
        """`ADP-T: training, update 120/200, loss 4.100, validation perplexity 30.00, 2.0 s`."""
        parts = [f"{self.name}: {self.stage}"]
        if self.update:
            parts.append(f"update {self.update}/{self.plan.updates}")
        if self.loss is not None and self.stage == "training":
            parts.append(f"loss {self.loss:.3f}")
        if self.validation is not None:
            about = "about " if self.validation.share < 1 else ""
            parts.append(f"validation perplexity {about}{number(self.validation.perplexity)}")
        if self.last is not None:
            parts.append(duration(self.last.seconds))
        return ", ".join(parts)


class Display:
    """Prints the progress of a study."""

    def __init__(self, plans: Sequence[Plan], stream: IO[str], is_silent: bool) -> None:
        self.members: dict[Path, MemberProgress] = {p.run.path: MemberProgress(p) for p in plans}
        self.console = Console(file=stream, quiet=is_silent)
        self._current: MemberProgress | None = None

    @contextmanager
    def show(self) -> Iterator[Display]:
        """Show the progress. On a terminal, the current line is redrawn twice a second."""
        for line in self._warnings() if not self.console.quiet else ():
            self._print(f"warning: {line}")
        live = Live(
            get_renderable=self._draw,
            console=self.console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live if self.console.is_terminal and not self.console.quiet else nullcontext():
            self.console.show_cursor(True)  # in case a signal kills the process
            yield self

    def set_stage(self, plan: Plan, stage: str) -> None:
        """Set the stage of a member: "training", "scoring" or one of `_FINAL_STAGES`."""
        member = self._current = self.members[plan.run.path]
        member.stage = stage
        member.read_log()
        if stage in _FINAL_STAGES or not self.console.is_terminal:
            self._print(self.line(member))

    def line(self, member: MemberProgress) -> str:
        position = list(self.members.values()).index(member) + 1
        text = f"[{position}/{len(self.members)}] {member.line()}"
        if member.stage not in _FINAL_STAGES and (left := self.time_left()) is not None:
            text += f", about {left} of training left in total"
        return text

    def time_left(self) -> str | None:
        """Estimate the remaining training time from the speed so far; None if unknown."""
        members = list(self.members.values())
        speed, work_left = measured_speed(members), sum(member.work_left for member in members)
        return throughput.format_duration(work_left / speed) if speed and work_left else None

    def _draw(self) -> Text:
        if self._current is None:
            return Text()
        if self._current.stage == "training":
            self._current.read_log()
        return Text(one_line(self.line(self._current)))

    def _warnings(self) -> list[str]:
        """Return warnings about slow training and schedules that end with a high learning rate."""
        members = list(self.members.values())
        schedules = [high_end_warning(member.plan.config) for member in members]
        subject = "this study" if len(members) > 1 else "this member"
        slow = throughput.slow_cpu_warning(sum(member.work_left for member in members), subject)
        lines = [*dict.fromkeys(schedules), slow]
        return [line for line in lines if line is not None]

    def _print(self, text: str) -> None:
        self.console.print(Text(one_line(text)), soft_wrap=True)  # keep paths in one piece


def measured_speed(members: Sequence[MemberProgress]) -> float | None:
    """Return the floating-point operations per second of all training so far; None if unknown."""
    done = sum(member.work_done for member in members)
    seconds = sum(member.last.seconds for member in members if member.last)
    return done / seconds if done and seconds else None


def print_plans(plans: Sequence[Plan], speed: float, basis: str) -> None:
    """Print the runs of a study with estimated times.

    `speed` is in floating-point operations per second; `basis` says how it was measured.
    """
    members = [MemberProgress(plan) for plan in plans]
    rows = [
        {
            "model": member.name,
            "parameters": f"{member.plan.config.num_params():,}",
            "updates": f"{member.plan.updates:,}",
            "done": f"{member.update:,}",
            "tokens per update": f"{member.plan.config.training.tokens_per_update:,}",
            "time left": duration(member.work_left / speed),
        }
        for member in members
    ]
    _print_rows(rows)
    total = throughput.format_duration(sum(member.work_left for member in members) / speed)
    print(
        f"{len(members)} runs, about {total} in total ({basis}), plus validation, compilation and "
        "scoring. Nothing was written."
    )


def print_table(study: Study) -> None:
    """Print the comparison: perplexities, parameters, time, speed and memory."""
    print(one_line(study.title))
    groups, also = ("perplexity", "training", "streaming"), ("model", "parameters all")
    shown = [c for c in columns(study) if c.group in groups or c.name in also]
    rows = [{c.name.replace(" ", "\n", 1): c.text(row) for c in shown} for row in study.rows]
    _print_rows(rows)
    for row in study.rows:
        for text in filter(None, (row.problem, NOT_COMPILED if row.ran_uncompiled else "")):
            print(one_line(f"{row.label}: {text}"))


def _print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in rows[0]:
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for row in rows:
        # Text, because rich would parse [brackets] in a name as markup.
        table.add_row(*(Text(one_line(cell)) for cell in row.values()))
    Console(width=_TABLE_WIDTH).print(table)
