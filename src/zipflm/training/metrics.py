"""What a run counts between two reports, and its log: lines of JSON, and lines for people."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from zipflm.messages import one_line
from zipflm.runs.folder import RunFolder, append_line
from zipflm.runs.records import LogLine, Report, SinceReport, Validation
from zipflm.settings import to_dict
from zipflm.training.step import Learner, UpdateResult


@dataclass
class Tally:
    """What a run has counted so far; a checkpoint keeps it.

    Time counts while training only: `pause` before validating or saving, `go_on` after.
    """

    update: int = 0
    """The last one whose result has arrived."""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    """Of `seconds`, those of updates in which the model was compiled."""
    cpu_seconds: float | None = None
    """CPU time of this thread, without compilation; None: not counted.

    Of this thread alone, because that of all threads depends on how OpenMP waits.
    """
    skipped: int = 0
    skipped_in_a_row: int = 0
    since_report: SinceReport = field(default_factory=SinceReport)
    stop: bool = False
    """A process was asked to stop."""
    last_good: int | None = None
    """The last update of this session that was not skipped."""

    def __post_init__(self) -> None:
        self.go_on()

    def see(self, results: Iterable[UpdateResult]) -> None:
        """Take in what has arrived from the device."""
        since = self.since_report
        for result in results:
            self.update += 1
            since.updates += 1
            self.stop = self.stop or result.stop > 0
            if result.bad:
                self.skipped += 1
                self.skipped_in_a_row += 1
                continue
            self.skipped_in_a_row = 0
            self.last_good = self.update
            since.nll += result.nll
            since.tokens += int(result.tokens)
            since.words += int(result.words)
            since.grad_norm = result.norm

    def go_on(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()

    def pause(self) -> None:
        elapsed = time.perf_counter() - self._since
        self.seconds += elapsed
        self.since_report.seconds += elapsed
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

    def take(self) -> SinceReport:
        """What was counted since the last report, to count anew; between `pause` and `go_on`."""
        since, self.since_report = self.since_report, SinceReport()
        return since


class Log:
    """`report` for numbers, `say` for sentences, `advance` after every update; `close` it."""

    def __init__(
        self, run: RunFolder, max_updates: int, is_silent: bool = False, tensorboard: bool = False
    ) -> None:
        self._run, self._max_updates, self._is_silent = run, max_updates, is_silent
        self._bar: Progress | None = None
        self.is_unread = False
        """Nothing reads the output any more (`| head`, or a `| tee` that Ctrl-C ended first)."""
        self._make_events = _event_writer() if tensorboard and not is_silent else None
        self._events: Any = None

    def begin(self, update: int) -> None:
        """On a terminal, a bar below the lines, which stands at `update`."""
        if sys.stdout.isatty() and not self._is_silent:
            columns = (
                TextColumn("update"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[stage]}"),
            )
            self._bar = Progress(*columns, console=Console())
            total = self._max_updates
            self._task = self._bar.add_task("", total=total, completed=update, stage="")
            self._bar.start()
            self._bar.console.show_cursor(True)  # a signal may end the program at any moment

    def advance(self, update: int) -> None:
        """This many updates are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=update)

    @contextmanager
    def doing(self, what: str, line: str = "") -> Iterator[None]:
        """While it lasts the bar says what is being done; where there is no bar, `line` is said
        before."""
        if self._bar is None:
            if line:
                self.say(line)
            yield
            return
        self._bar.update(self._task, stage=f"  {what} ...", refresh=True)
        try:
            yield
        finally:
            self._bar.update(self._task, stage="", refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._events is not None:
            self._events.close()

    def say(self, text: str) -> None:
        """A sentence that is not part of the numbers."""
        if self._is_silent or self.is_unread:
            return
        text = one_line(text)
        if self._bar is not None:
            # Lines longer than the terminal are the terminal's to wrap, as without a bar.
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            try:
                print(text, flush=True)
            except BrokenPipeError:
                self.is_unread = True

    def report(self, line: LogLine) -> None:
        """One object of the log, and its line."""
        if self._is_silent:
            return
        try:
            append_line(self._run.log_path, line)
        except OSError as error:  # a full disk is no reason to lose the run
            self.say(f"could not write to {self._run.log_path} ({error}); the run goes on")
        self.say(as_text(line, self._max_updates))
        if self._make_events is not None:
            self._events = self._events or self._make_events(self._run.path / "tensorboard")
            self._add_events(line)

    def _add_events(self, line: LogLine) -> None:
        prefix = "train"
        if isinstance(line, Validation):
            prefix = "valid" if line.share == 1 else "valid-part"
        for name, value in to_dict(line).items():
            if isinstance(value, int | float) and name != "update":
                self._events.add_scalar(f"{prefix}/{name}", value, line.update)


def as_text(line: LogLine, max_updates: int) -> str:
    """A line of the log for people."""
    start = f"update {line.update}/{max_updates}"
    match line:
        case Report():
            return "  ".join([start, *_report_parts(line)])
        case Validation():
            blocks = line.blocks
            return (
                f"{start}  valid loss {_number(line.nats_per_word, 4)} per word  "
                f"perplexity {_number(line.perplexity)} ({_covered(line)}, "
                f"{blocks.break_mode} blocks of {blocks.block}, context {blocks.context})"
            )


def _covered(line: Validation) -> str:
    words = f"{line.words:,} words"
    return words if line.share == 1 else f"{words}, {line.share:.0%} of the set"


def _report_parts(line: Report) -> list[str]:
    loss = f"loss {_number(line.loss, 4)}"
    if line.token_unit != "word":
        loss += f" per piece, {_number(line.nats_per_word, 4)} per word"
    parts = [
        f"epoch {line.epoch:.2f}",
        loss,
        f"perplexity {_number(line.perplexity)}",
        f"lr {line.learning_rate:.3g}",
        f"norm {_number(line.grad_norm, 3)}",
        f"{line.tokens_per_second:,.0f} tokens/s",
        f"{line.memory / 2**30:.1f} GiB",
    ]
    if line.flop_utilisation is not None:
        parts.append(f"{line.flop_utilisation:.1%} of peak")
    parts.append(f"left {_duration(line.seconds_left)}")
    if line.compiled is False:
        parts.append("NOT COMPILED")
    if line.skipped:
        parts.append(f"skipped {line.skipped}")
    return parts


def _number(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.{digits}f}" if value < 1e6 else f"{value:.2e}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _event_writer() -> Any:
    """The type that writes TensorBoard events into a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "training.tensorboard=true: the package is not installed; pip install "
            "tensorboard, or leave it off: log.jsonl has the same numbers"
        ) from None
    return SummaryWriter
