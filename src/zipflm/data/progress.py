"""What a person sees while data is made: a progress bar on stderr, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zipflm.data.folder import DataFolder


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function for `prepare(report=...)` that draws on a terminal and is silent elsewhere."""
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
        TextColumn("{task.percentage:3.0f} %"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.advance(tasks[what], done)

        yield report


def summary(folder: DataFolder) -> str:
    """A few lines on what a folder holds."""
    facts = folder.facts
    vocabulary = facts.vocabulary
    how = "" if facts.splitting.is_plain else f", {facts.splitting}"
    lines = [
        f"{folder.path}: {vocabulary.size:,} ids ({facts.unit}{how}), hash {vocabulary.hash[:16]}"
    ]
    for name, split in facts.splits.items():
        unknown = 100 * split.unknown / split.tokens
        files = len(split.sources)
        lines.append(
            f"  {name:5}  {files:>4} file{'s' if files != 1 else ' '}  "
            f"{split.tokens:>13,} tokens  {split.sentences:>11,} sentences  "
            f"{split.types:>10,} types  {unknown:.2f} % unknown"
        )
    asked, learned = facts.options.bpe, facts.bpe.merges if facts.bpe else 0
    if asked is not None and learned < asked:
        lines.append(f"  {learned:,} merges learned of {asked:,}: no other pair occurs twice")
    return "\n".join(lines)
