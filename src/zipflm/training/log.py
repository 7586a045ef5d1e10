"""What a run tells: a line for people, an object in log.jsonl, TensorBoard if asked.

The first process alone writes; the others have a log that stays silent.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
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


class Log:
    """Open with `with`; `report` for numbers, `say` for sentences, `advance` after every update."""

    def __init__(
        self, out: Path, max_updates: int, is_silent: bool = False, tensorboard: bool = False
    ) -> None:
        self._out, self._max_updates, self._is_silent = out, max_updates, is_silent
        self._bar: Progress | None = None
        self._make_events = _event_writer() if tensorboard and not is_silent else None
        self._events: Any = None

    def __enter__(self) -> Self:
        if self._make_events is not None:
            self._events = self._make_events(self._out / "tensorboard")
        return self

    def begin(self, update: int) -> None:
        """On a terminal, a bar below the lines, which stands at `update`."""
        if sys.stdout.isatty() and not self._is_silent:
            left = TextColumn("left"), TimeRemainingColumn()
            columns = TextColumn("update"), MofNCompleteColumn(), BarColumn(), *left
            self._bar = Progress(*columns, console=Console())
            self._task = self._bar.add_task("", total=self._max_updates, completed=update)
            self._bar.start()

    def advance(self, update: int) -> None:
        """So many updates are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=update)

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
        if self._is_silent:
            return
        if self._bar is not None:
            # Lines longer than the terminal are the terminal's to wrap, as without a bar.
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def report(self, entry: Mapping[str, Any]) -> None:
        """One object of the log, and its line."""
        if self._is_silent:
            return
        self._write(json.dumps(_finite(entry)) + "\n")
        self.say(as_line(entry, self._max_updates))
        if self._events is not None:
            for name, value in entry.get("valid", entry).items():
                prefix = "valid" if "valid" in entry else "train"
                if isinstance(value, int | float) and name != "update":
                    self._events.add_scalar(f"{prefix}/{name}", value, entry["update"])

    def _write(self, text: str) -> None:
        """A line that cannot be written, on a full disk, is no reason to lose the run."""
        path = self._out / "log.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self.say(f"could not write to {path} ({error}); the run goes on")


def as_line(entry: Mapping[str, Any], max_updates: int) -> str:
    """An entry of the log for people."""
    start = f"update {entry['update']}/{max_updates}"
    if "valid" in entry:
        valid = entry["valid"]
        return (
            f"{start}  valid loss {valid['loss']:.4f}  "
            f"perplexity {_perplexity(valid['perplexity'])} "
            f"({valid['words']:,} words, {valid['break_mode']} blocks of {valid['block']}, "
            f"context {valid['context']})"
        )
    parts = [
        start,
        f"epoch {entry['epoch']:.2f}",
        f"loss {entry['loss']:.4f}",
        f"perplexity {_perplexity(entry['perplexity'])}",
        f"lr {entry['learning_rate']:.3g}",
        f"norm {entry['grad_norm']:.3g}",
        f"{entry['tokens_per_second']:,.0f} tokens/s",
        f"{entry['memory'] / 2**30:.1f} GiB",
        f"left {_duration(entry['seconds_left'])}",
    ]
    if "flop_utilisation" in entry:
        parts.insert(-2, f"{entry['flop_utilisation']:.1%} of peak")
    if entry["skipped"]:
        parts.append(f"skipped {entry['skipped']}")
    return "  ".join(parts)


def _perplexity(value: float) -> str:
    return f"{value:.2f}" if value < 1e6 else f"{value:.2e}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _finite(value: Any) -> Any:
    """JSON has no infinity: null instead."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _event_writer() -> Any:
    """The type that writes TensorBoard events into a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "training.tensorboard=true: the package is not installed; pip install "
            "'zipflm[tensorboard]', or leave it off: log.jsonl has the same numbers"
        ) from None
    return SummaryWriter
