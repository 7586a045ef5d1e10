"""What a run tells: a line for people, an object in log.jsonl, TensorBoard if asked.

The first process alone writes; the others have a log that stays silent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from zipflm.records import to_dict
from zipflm.runs.folder import RunFolder
from zipflm.runs.log import append_line
from zipflm.runs.records import LogLine, Report, Validation
from zipflm.terminal import one_line


class Log:
    """Open with `with`; `report` for numbers, `say` for sentences, `advance` after every update."""

    def __init__(
        self, run: RunFolder, max_updates: int, is_silent: bool = False, tensorboard: bool = False
    ) -> None:
        self._run, self._max_updates, self._is_silent = run, max_updates, is_silent
        self._bar: Progress | None = None
        self.is_unread = False
        """Nothing reads the output any more (`| head`, or a `| tee` that Ctrl-C ended first)."""
        self._make_events = _event_writer() if tensorboard and not is_silent else None
        self._events: Any = None

    def __enter__(self) -> Self:
        if self._make_events is not None:
            self._events = self._make_events(self._run.path / "tensorboard")
        return self

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        self._write(line)
        self.say(as_text(line, self._max_updates))
        if self._events is not None:
            prefix = "train"
            if isinstance(line, Validation):
                prefix = "valid" if line.share == 1 else "valid-part"
            for name, value in to_dict(line).items():
                if isinstance(value, int | float) and name != "update":
                    self._events.add_scalar(f"{prefix}/{name}", value, line.update)

    def _write(self, line: LogLine) -> None:
        """A line that cannot be written, on a full disk, is no reason to lose the run."""
        try:
            append_line(self._run.log_path, line)
        except OSError as error:
            self.say(f"could not write to {self._run.log_path} ({error}); the run goes on")


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
