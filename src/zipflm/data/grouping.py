"""Rows of similar length to batches: as many as fit into a number of tokens, padding included."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Lengths of rows in their order, with equal neighbours taken together: a few numbers, where
    billions of tokens have been cut into blocks of one length or sorted."""

    lengths: Positions
    ends: Positions

    @classmethod
    def of(cls, lengths: NDArray[Any], counts: Positions | None = None) -> Runs:
        """Of so many rows of each length, or one."""
        if len(lengths) == 0:
            return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        last = np.append(np.flatnonzero(lengths[1:] != lengths[:-1]), len(lengths) - 1)
        ends = last + 1 if counts is None else np.cumsum(counts)[last]
        return cls(lengths[last].astype(np.int64), ends)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def num_rows(self) -> int:
        return int(self.ends[-1]) if len(self) else 0

    @property
    def starts(self) -> Positions:
        return np.append(0, self.ends[:-1])

    def lengths_of(self, start: int, stop: int) -> Positions:
        """The lengths of rows `start` to `stop`, which may lie behind the last row."""
        stop = min(stop, self.num_rows)
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        edges = np.clip(np.append(start, self.ends[first : last + 1]), start, stop)
        return np.repeat(self.lengths[first : last + 1], np.diff(edges))


@dataclass(frozen=True)
class Groups:
    """Which rows a batch has, with batches of equally many rows taken together."""

    first_rows: Positions
    """Of the first batch of each piece."""
    first_batches: Positions
    """Their numbers, and that of all batches."""
    sizes: Positions
    """Rows of each batch of a piece."""

    def __len__(self) -> int:
        return int(self.first_batches[-1])

    def rows(self, batches: Positions) -> tuple[Positions, Positions]:
        """The first row of each batch, and how many it has."""
        piece = np.searchsorted(self.first_batches, batches, side="right") - 1
        sizes = self.sizes[piece]
        return self.first_rows[piece] + (batches - self.first_batches[piece]) * sizes, sizes


def group(lengths: NDArray[Any], max_tokens: int) -> Positions:
    """Boundaries of batches over rows in the given order.

    As many rows as fit into `max_tokens` padded to the longest; a row that is longer goes alone.
    """
    groups = group_runs(Runs.of(lengths), max_tokens)
    return np.append(groups.rows(np.arange(len(groups)))[0], len(lengths))


def group_runs(runs: Runs, max_tokens: int) -> Groups:
    """The same for rows whose equal neighbours have been taken together.

    Rows of one length fill batches of one size, however many: almost all of a text in blocks, or of
    one whose rows are sorted.
    """
    rows, batches, sizes, row = array("q"), array("q", [0]), array("q"), 0
    for length, end in zip(runs.lengths.tolist(), runs.ends.tolist(), strict=True):
        most = max(1, max_tokens // length)
        while row < end:
            number, size = (end - row) // most, most
            if number == 0:
                number, size = 1, _first_batch(runs.lengths_of(row, row + most), max_tokens)
            rows.append(row)
            batches.append(batches[-1] + number)
            sizes.append(size)
            row += number * size
    return Groups(*(np.array(each, dtype=np.int64) for each in (rows, batches, sizes)))


def _first_batch(lengths: Positions, max_tokens: int) -> int:
    """How many rows it has."""
    longest = np.maximum.accumulate(lengths)
    fitting = np.count_nonzero(longest * np.arange(1, len(longest) + 1) <= max_tokens)
    return max(1, int(fitting))
