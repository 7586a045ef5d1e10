"""Counters of a run, and its log: JSON lines, printed lines, TensorBoard and a progress bar."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
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
from zipflm.runs.records import Counters, LogLine, Report, SinceReport, Validation
from zipflm.settings import to_dict
from zipflm.training.step import Learner, UpdateResult


@dataclass(kw_only=True)
class Tally(Counters):
    """Updates the counters of a run.

    Only training time counts: call `pause` before validating or saving and `resume` afterwards.
    """

    should_stop: bool = False
    """True if a process received a request to stop."""

    def __post_init__(self) -> None:
        self.resume()

    def add(self, results: Iterable[UpdateResult]) -> None:
        since = self.since_report
        for result in results:
            self.update += 1
            since.updates += 1
            self.should_stop = self.should_stop or result.stop > 0
            if result.bad:
                self.skipped += 1
                self.skipped_in_a_row += 1
                continue
            self.skipped_in_a_row = 0
            since.nll += result.nll
            since.tokens += int(result.tokens)
            since.words += int(result.words)
            since.grad_norm = result.norm

    def record_validation(self, loss: float | None) -> None:
        best = math.inf if self.best_loss is None else self.best_loss
        if loss is not None and loss < best:
            self.best_loss, self.since_best = loss, 0
        else:
            self.since_best += 1

    def resume(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()

    def pause(self) -> None:
        elapsed = time.perf_counter() - self._since
        self.seconds += elapsed
        self.since_report.seconds += elapsed
        if self.cpu_seconds is not None:
            self.cpu_seconds += time.thread_time() - self._cpu_since

    @contextmanager
    def compiling(self, learner: Learner) -> Iterator[None]:
        """Count the time of an update as compilation if the update compiled a new copy of the
        model's forward function (see `training.compilation`).

        The update itself takes at most 1% of that time. With dynamic shapes, torch may compile an
        existing copy again, which is not counted.
        """
        before, start, cpu_start = learner.num_versions, time.perf_counter(), time.thread_time()
        yield
        if learner.num_versions > before:
            self.compile_seconds += time.perf_counter() - start
            self._cpu_since += time.thread_time() - cpu_start

    def take(self) -> SinceReport:
        """Return and reset the sums since the last report. Call between `pause` and `resume`."""
        since, self.since_report = self.since_report, SinceReport()
        return since


class Log:
    """Writes `log.jsonl` and TensorBoard events, prints lines and draws the progress bar."""

    def __init__(
        self, run: RunFolder, max_updates: int, is_silent: bool = False, tensorboard: bool = False
    ) -> None:
        self._run, self._max_updates, self._is_silent = run, max_updates, is_silent
        self._has_bar = sys.stdout.isatty() and not is_silent
        self._bar = Progress(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[stage]}"),
            console=Console(),
            disable=not self._has_bar,
        )
        self._task = self._bar.add_task("", total=max_updates, stage="")
        self.is_output_closed = False
        """True if the program that reads stdout has exited (`| head`, or a `| tee` stopped by
        Ctrl-C)."""
        self._tensorboard = tensorboard and not is_silent
        self._events: Any = None

    def start(self, update: int) -> None:
        """Open the TensorBoard log if requested. Start the bar if stdout is a terminal. `update` is
        the number of updates done."""
        if self._tensorboard:
            self._events = _event_writer(self._run.path / "tensorboard", update)
        self._bar.reset(self._task, start=True, total=self._max_updates, completed=update)
        self._bar.start()
        if self._has_bar:
            # A signal can end the program before the bar would show the cursor again.
            self._bar.console.show_cursor(True)

    def advance(self, update: int) -> None:
        self._bar.update(self._task, completed=update)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show `text` next to the bar, if there is one."""
        self._bar.update(self._task, stage=f"  {text} ...", refresh=True)
        try:
            yield
        finally:
            self._bar.update(self._task, stage="", refresh=True)

    def close(self) -> None:
        self._bar.stop()
        if self._events is not None:
            self._events.close()

    def info(self, text: str) -> None:
        if self._is_silent or self.is_output_closed:
            return
        text = one_line(text)
        if self._has_bar:
            # Let the terminal wrap long lines, as it does without a bar.
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            try:
                print(text, flush=True)
            except BrokenPipeError:
                self.is_output_closed = True

    def report(self, line: LogLine) -> None:
        if self._is_silent:
            return
        try:
            append_line(self._run.log_path, line)
        except OSError as error:  # a full disk must not stop the run
            self.info(f"could not write to {self._run.log_path} ({error}); training continues")
        self.info(as_text(line, self._max_updates))
        if self._events is not None:
            self._add_events(line)

    def _add_events(self, line: LogLine) -> None:
        prefix = "train"
        if isinstance(line, Validation):
            prefix = "valid" if line.share == 1 else "valid-part"
        for name, value in to_dict(line).items():
            if isinstance(value, int | float) and name != "update":
                self._events.add_scalar(f"{prefix}/{name}", value, line.update)


def as_text(line: LogLine, max_updates: int) -> str:
    """Format a log line as text."""
    start = f"update {line.update}/{max_updates}"
    if isinstance(line, Report):
        return "  ".join([start, *_report_parts(line)])
    blocks = line.blocks
    share = "" if line.share == 1 else f", {line.share:.0%} of the set"
    return (
        f"{start}  valid loss {_number(line.nats_per_word, 4)} per word  "
        f"perplexity {_number(line.perplexity)} ({line.words:,} words{share}, "
        f"block {blocks.block}, context {blocks.context}, break {blocks.break_mode})"
    )


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
    parts.append(f"left {timedelta(seconds=round(line.seconds_left))}")
    if line.compiled is False:
        parts.append("NOT COMPILED")
    if line.skipped:
        parts.append(f"skipped {line.skipped}")
    return parts


def _number(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return "not finite"
    return f"{value:.{digits}f}" if value < 1e6 else f"{value:.2e}"


def _event_writer(path: Path, update: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "training.tensorboard=true: TensorBoard is not installed; pip install tensorboard, or "
            "leave this setting off: log.jsonl has the same numbers"
        ) from None
    # Hides events after `update` that an interrupted run has written.
    return SummaryWriter(path, purge_step=update + 1)
