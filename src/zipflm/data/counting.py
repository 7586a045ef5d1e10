"""Counting words, in memory or within a budget of it.

A `WordCounts` with a budget writes the words it has, sorted, to a file whenever they take too much
memory, and begins anew; in the end these runs are merged, a little of each at a time. So the number
of different words is bounded by the disk. Words come back in blocks: all in one, in the order of
sight, where memory sufficed, otherwise sorted by code point.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import CONTINUES, SPECIALS, UNKNOWN

Word = TypeVar("Word", str, bytes)

WordBlock = tuple[Sequence[str], NDArray[np.int64]]
"""Different words and how often each occurs."""

_NUMBER_BYTES = 32
"""Of an integer object, which a table has for every word."""
_MOST_RUNS = 64
"""More would be too many open files, and too little memory for each."""
_BLOCK_BYTES = 1 << 18
_LEAST_BLOCK_BYTES = 1 << 12
_WRITTEN = 1 << 12
"""Words at a time: memory is short whenever any are written."""
_WORDS_PER_BYTE_READ = 24
"""Bytes of memory that a byte of a run takes as part of a list of words, with room for merging."""


def numbering(first: Word | None = None) -> defaultdict[Word, int]:
    """A table that gives a word it has not seen the next number; `first`, if any, has 0."""
    table = defaultdict[Word, int](count().__next__)
    if first is not None:
        assert table[first] == 0
    return table


class WordTable:
    """Words by number, in the order of sight, and how often each occurred."""

    def __init__(self, first: str | None = None) -> None:
        self.index: defaultdict[str, int] = numbering(first)
        self._counts = np.zeros(1, dtype=np.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[: len(self.index)]

    def add(self, words: Sequence[str], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Count words that are different from each other; their numbers."""
        numbers = np.fromiter(map(self.index.__getitem__, words), np.uint32, len(words))
        if len(self.index) > len(self._counts):
            missing = 2 * len(self.index) - len(self._counts)
            self._counts = np.append(self._counts, np.zeros(missing, dtype=np.int64))
        self._counts[numbers] += counts
        return numbers

    @property
    def table_bytes(self) -> int:
        """Memory of all but the words themselves and their numbers."""
        # Twice: while the index grows, the old one and a new one are both there.
        return 2 * sys.getsizeof(self.index) + self._counts.nbytes


class WordCounts:
    """Counts of words, within about `budget` bytes of memory if there is one."""

    def __init__(self, folder: Path, budget: int | None = None) -> None:
        """`folder` is where runs go; it is to be removed by whoever made it."""
        self._folder, self._budget = folder, budget
        self._table = WordTable()
        self._object_bytes = 0
        self._runs: list[_Run] = []
        self._num_made = 0

    def add(self, words: Sequence[str], counts: NDArray[np.int64]) -> None:
        """Count words that are different from each other, as those of a chunk are."""
        known = len(self._table.index)
        self._table.add(words, counts)
        if self._budget is None:
            return
        # The newest words are the last of a dictionary.
        new = islice(reversed(self._table.index), len(self._table.index) - known)
        self._object_bytes += sum(map(sys.getsizeof, new))
        self._object_bytes += _NUMBER_BYTES * (len(self._table.index) - known)
        if self._object_bytes + self._table.table_bytes > self._budget:
            self._spill()

    def blocks(self) -> Iterator[WordBlock]:
        """All words, each once, a block at a time."""
        if not self._runs:
            if self._table.index:
                yield list(self._table.index), self._table.counts
            return
        self._spill()
        self._merge_runs()
        yield from self._runs[0].blocks(_BLOCK_BYTES)

    def settle(self) -> None:
        """Leave the memory to others, if it is short: what is counted waits on the disk."""
        if self._budget is not None:
            self._spill()

    def _spill(self) -> None:
        if not self._table.index:
            return
        index, counts = self._table.index, self._table.counts
        words = sorted(index)
        parts = (words[at : at + _WRITTEN] for at in range(0, len(words), _WRITTEN))
        blocks = ((part, counts[[index[word] for word in part]]) for part in parts)
        self._runs.append(self._new_run(blocks))
        self._table, self._object_bytes = WordTable(), 0
        if len(self._runs) == _MOST_RUNS:
            self._merge_runs()

    def _merge_runs(self) -> None:
        if len(self._runs) > 1:
            before = self._runs
            self._runs = [self._new_run(self._merged())]
            for run in before:
                run.remove()

    def _new_run(self, blocks: Iterable[WordBlock]) -> _Run:
        self._num_made += 1
        return _Run.write(self._folder / f"run-{self._num_made:06d}", blocks)

    def _merged(self) -> Iterator[WordBlock]:
        """Blocks of all runs together, sorted."""
        size = _BLOCK_BYTES
        if self._budget is not None:
            size = min(size, self._budget // (_WORDS_PER_BYTE_READ * len(self._runs)))
        size = max(size, _LEAST_BLOCK_BYTES)
        with ExitStack() as stack:
            heads = [_Head(stack.enter_context(closing(run.blocks(size)))) for run in self._runs]
            while heads := [head for head in heads if head.fill()]:
                # Up to this word nothing can come any more that is not in a head already.
                bound = min(head.words[-1] for head in heads)
                table = WordTable()
                for head in heads:
                    table.add(*head.take(bound))
                words = sorted(table.index)
                yield words, table.counts[[table.index[word] for word in words]]


class _Head:
    """The next words of a run."""

    def __init__(self, blocks: Iterator[WordBlock]) -> None:
        self._blocks = blocks
        self.words: Sequence[str] = ()
        self._counts = np.zeros(0, dtype=np.int64)

    def fill(self) -> bool:
        """Have some words; False if there are no more."""
        if not self.words:
            self.words, self._counts = next(self._blocks, ((), self._counts[:0]))
        return bool(self.words)

    def take(self, bound: str) -> WordBlock:
        """Those up to `bound`, which are not among the next ones any more."""
        end = bisect_right(self.words, bound)
        taken = self.words[:end], self._counts[:end]
        self.words, self._counts = self.words[end:], self._counts[end:]
        return taken


@dataclass(frozen=True)
class _Run:
    """Sorted words with their counts in two files: a word a line, and 64 bits each."""

    words: Path
    counts: Path

    @classmethod
    def write(cls, path: Path, blocks: Iterable[WordBlock]) -> _Run:
        run = cls(path.with_suffix(".words"), path.with_suffix(".counts"))
        with open(run.words, "wb") as words_file, open(run.counts, "wb") as counts_file:
            for words, counts in blocks:
                words_file.write("".join(f"{word}\n" for word in words).encode())
                counts_file.write(counts.tobytes())
        return run

    def blocks(self, size: int) -> Generator[WordBlock, None, None]:
        """Words and counts, about so many bytes of words at a time."""
        with open(self.words, "rb") as words_file, open(self.counts, "rb") as counts_file:
            while data := words_file.read(size):
                # No word has a line end in it, which is what they were separated by in the text.
                words = (data + words_file.readline()).decode().removesuffix("\n").split("\n")
                yield words, np.fromfile(counts_file, np.int64, len(words))

    def remove(self) -> None:
        self.words.unlink()
        self.counts.unlink()


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the words of a split add up to; line ends are none of them."""

    types: int
    letters: int
    """Bytes of all running words in UTF-8."""
    continued: int
    """Running words that end in `@@`."""
    spelt_unknown: int
    """Running words that read `<unk>` in the text itself."""

    @classmethod
    def of(cls, blocks: Iterable[WordBlock]) -> Totals:
        types = letters = continued = spelt_unknown = 0
        for words, counts in blocks:
            types += len(words)
            for word, number in zip(words, counts.tolist(), strict=True):
                letters += number * (len(word) if word.isascii() else len(word.encode()))
                if word.endswith(CONTINUES):
                    continued += number
                elif word == SPECIALS[UNKNOWN]:
                    spelt_unknown += number
        return cls(types=types, letters=letters, continued=continued, spelt_unknown=spelt_unknown)
