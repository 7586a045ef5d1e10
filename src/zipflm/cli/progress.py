"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(unit: str = "bytes") -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a function that reports progress as a bar for each task, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:22}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TransferSpeedColumn() if unit == "bytes" else TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(task: str, done: int, total: int | None) -> None:
            # A task that is repeated gets a new bar.
            if task not in bars or progress.tasks[bars[task]].finished:
                bars[task] = progress.add_task(task, total=total, rate="")
            bar = progress.tasks[bars[task]]
            progress.update(bar.id, advance=done, rate=f"{bar.speed or 0:,.0f} {unit}/s")

        yield report
