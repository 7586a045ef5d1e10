"""What a person sees while data is made or scored: a progress bar on stderr, a summary, doubts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from zipflm.data.folder import DataFolder

_MOST_UNKNOWN = 0.05
"""Of the words of a held-out text: beyond that, a perplexity says little about the text."""
_LONGEST_LINE = 1_000_000
"""Words; no sentence and no article has so many."""
_COMPARED = 1 << 20


@contextmanager
def progress_bar(unit: str = "bytes") -> Iterator[Callable[[str, int, int | None], None]]:
    """A function for `prepare(report=...)` that draws on a terminal and is silent elsewhere.

    It takes what is going on, how much was just done, and how much there is, if that is known.
    """
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
        TransferSpeedColumn() if unit == "bytes" else TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(what: str, done: int, total: int | None) -> None:
            # The same may be done twice, and then has a bar of its own.
            if what not in tasks or progress.tasks[tasks[what]].finished:
                tasks[what] = progress.add_task(what, total=total, rate="")
            task = progress.tasks[tasks[what]]
            progress.update(task.id, advance=done, rate=f"{task.speed or 0:,.0f} {unit}/s")

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
    if facts.splitting.is_plain and not facts.options.ids:
        lines.append(
            "  words are what spaces separate (--split words splits punctuation off as well)"
        )
    asked, learned = facts.options.bpe, facts.bpe.merges if facts.bpe else 0
    if asked is not None and learned < asked:
        lines.append(f"  {learned:,} merges learned of {asked:,}: no other pair occurs twice")
    return "\n".join(lines)


def _longest(offsets: NDArray[np.uint64]) -> int:
    """Tokens of the longest sentence; a few at a time, as there may be billions."""
    starts = range(0, len(offsets) - 1, _COMPARED)
    return max(int(np.diff(offsets[start : start + _COMPARED + 1]).max()) for start in starts)


def doubts(folder: DataFolder) -> Iterator[str]:
    """What is probably not as it was meant."""
    for name, split in folder.facts.splits.items():
        unknown = split.out_of_vocabulary / split.words
        if name != "train" and unknown > _MOST_UNKNOWN:
            yield (
                f"{unknown:.1%} of the words of the {name} text are unknown, and a model learns "
                "nothing about them; is it a text of the same kind, split alike? Otherwise lower "
                "--min-count, raise --max-size, or use sub-words (--bpe)"
            )
        longest = _longest(folder.tokens(name).offsets)
        if longest > _LONGEST_LINE:
            yield (
                f"the {name} text has a line of {longest:,} words; a line should be a sentence or "
                "a paragraph: are its line ends missing?"
            )
