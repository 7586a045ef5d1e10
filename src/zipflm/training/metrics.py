"""Training metrics: throughput and memory, sums between two reports, the log and its console
lines.
"""

from __future__ import annotations

import ctypes
import math
import platform
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from zipflm.config import ModelConfig
from zipflm.messages import one_line
from zipflm.runs.folder import RunFolder, append_line
from zipflm.runs.records import LogLine, Report, SinceReport, Sums, Validation
from zipflm.settings import to_dict
from zipflm.training.step import Learner, UpdateResult

# Dense bfloat16 operations per second, by a part of the device's name.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def device_name(device: torch.device) -> str:
    """Model name of a GPU or of this machine's CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        facts = ""
    found = re.search(r"^model name\s*:\s*(.+)$", facts, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def peak_flops(device: torch.device) -> float | None:
    """What the device can do at most, where known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def flops_per_token(config: ModelConfig, counts: NDArray[np.int64], block: int) -> float:
    """Operations to learn from one token of a block; `counts` [V] says how common each id is."""
    total = max(int(counts.sum()), 1)

    def share(first: int, end: int) -> float:
        return float(counts[first:end].sum()) / total

    # Two operations a product, and three passes: forward, and a gradient for each of two factors.
    return 6.0 * config.products_per_token(share, block)


def peak_memory(device: torch.device) -> int:
    """Most bytes used so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` count from here on, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        # What glibc keeps for later of memory that was freed would count as used.
        ctypes.CDLL(None).malloc_trim(0)
        # Linux: sets the peak of the resident set to its present size (man 5 proc, clear_refs).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return


@dataclass(frozen=True)
class Summary:
    """The updates since the last summary."""

    sums: Sums
    """Over those that were not skipped."""
    grad_norm: float
    tokens_per_second: float
    seconds_per_update: float
    data_share: float
    """Part of the time spent waiting for data."""


class Tally:
    """Time counts while training only: `pause` before validating or saving, `go_on` after.

    A run that is resumed hands over what its checkpoint knew; `since_report` gives that back.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        skipped: int = 0,
        *,
        update: int = 0,
        skipped_in_a_row: int = 0,
        since_report: SinceReport | None = None,
        compile_seconds: float = 0.0,
        cpu_seconds: float | None = None,
    ) -> None:
        self.seconds: float = seconds
        self.skipped: int = skipped
        self.compile_seconds: float = compile_seconds
        """Of `seconds`, those of updates in which the model was compiled."""
        self.cpu_seconds = cpu_seconds
        """CPU time of this thread, without compilation; None: not counted.

        Of this thread alone, because that of all threads depends on how OpenMP waits.
        """
        self.bad_in_a_row: int = skipped_in_a_row
        self.stop: bool = False
        self.last_good: int | None = None
        """The last update of this session that was not skipped."""
        self._update = update
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()
        self._start_again(since_report or SinceReport())

    def _start_again(self, since: SinceReport) -> None:
        self._nll, self._tokens, self._words = since.nll, since.tokens, since.words
        self._updates, self._norm = since.updates, since.grad_norm
        self._from = self.seconds - since.seconds
        self.waited: float = since.waited
        """Seconds the loop waited for data."""

    def see(self, outcomes: Iterable[UpdateResult]) -> None:
        """Take in what has arrived from the device."""
        for outcome in outcomes:
            self._update += 1
            self._updates += 1
            self.stop = self.stop or outcome.stop > 0
            if outcome.bad:
                self.skipped += 1
                self.bad_in_a_row += 1
                continue
            self.bad_in_a_row = 0
            self.last_good = self._update
            self._nll += outcome.nll
            self._tokens += int(outcome.tokens)
            self._words += int(outcome.words)
            self._norm = outcome.norm

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._since
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

    def go_on(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()

    @property
    def since_report(self) -> SinceReport:
        """What the next summary will be made of; read it between `pause` and `go_on`."""
        return SinceReport(
            updates=self._updates,
            nll=self._nll,
            tokens=self._tokens,
            words=self._words,
            grad_norm=self._norm,
            seconds=self.seconds - self._from,
            waited=self.waited,
        )

    def summary(self) -> Summary:
        """The numbers since the last summary; call between `pause` and `go_on`."""
        since = self.since_report
        elapsed = max(since.seconds, 1e-9)
        self._start_again(SinceReport())
        return Summary(
            sums=Sums(since.nll, since.tokens, since.words),
            grad_norm=since.grad_norm if since.tokens else math.nan,
            tokens_per_second=since.tokens / elapsed,
            seconds_per_update=elapsed / max(since.updates, 1),
            data_share=since.waited / elapsed,
        )


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
