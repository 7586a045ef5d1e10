"""Cut a stream into windows that score every token once, and group windows into batches.

Section 4.3 of the paper. Example: with `block=5, context=2` the parts of ten tokens are 0-3, 3-6,
6-9, 9-10, and the second window is 1-6, in which the targets 3, 4 and 5 are scored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks, BreakMode
from zipflm.data.token_file import Tokens

_AT_ONCE = 1 << 14
"""As many sentences or windows as a processor's cache has room for."""
_SMALL = 8
"""Below this part of what fits, a batch leaves the device idle."""


@dataclass(frozen=True)
class Windows:
    """Parts with their context, as positions in the stream: targets are `first` to `end`, of which
    those from `start` on are scored."""

    first: Positions
    start: Positions
    end: Positions

    def __getitem__(self, rows: slice | Positions) -> Windows:
        return Windows(self.first[rows], self.start[rows], self.end[rows])


@dataclass(frozen=True)
class Rows:
    """Windows in the order in which they are put into batches."""

    runs: Runs
    """Their lengths."""
    windows: Callable[[Positions], Windows]
    """Those at the given places of the order."""


def cut(tokens: Tokens, break_mode: BreakMode, size: int) -> NDArray[Any]:
    """Boundaries of the parts: ascending, from 0 to the number of tokens.

    `none`: every `size` tokens, the last part shorter. `complete`: as many whole sentences as fit
    into `size`, a longer one alone. `sentence`: every sentence, whatever `size` is.
    """
    if break_mode == "none":
        total = len(tokens.ids)
        return np.append(np.arange(0, total, size, dtype=np.int64), total)
    offsets = np.asarray(tokens.offsets)
    if break_mode == "sentence":
        return offsets
    firsts = _pack(offsets, size)
    return offsets[firsts].astype(np.int64)


def rows(tokens: Tokens, blocks: Blocks, *, sorts: bool, streams: int = 1) -> Rows:
    """The windows of a stream in its own order, or the shorter ones first.

    Of break mode `stream`: the first window of each of `streams` stretches, then the second of
    each, and so on. They are said to be equally long, though stretches end with shorter ones.
    """
    if blocks.break_mode == "stream":
        return _stretches(len(tokens.ids), blocks.block, streams)
    if blocks.break_mode == "none":
        return _even_rows(len(tokens.ids), blocks, sorts)
    bounds = cut(tokens, blocks.break_mode, blocks.block - blocks.context)
    return _rows_between(bounds, blocks, sorts)


def _stretches(total: int, block: int, number: int) -> Rows:
    length = -(-total // number)

    def windows(places: Positions) -> Windows:
        column, stretch = np.divmod(places, number)
        limit = np.minimum((stretch + 1) * length, total)
        start = np.minimum(stretch * length + column * block, limit)
        return Windows(start, start, np.minimum(start + block, limit))

    num_rows = -(-length // block) * number
    return Rows(_runs(np.array([block]), np.array([num_rows])), windows)


def _even_rows(total: int, blocks: Blocks, sorts: bool) -> Rows:
    """Parts of one size: nothing is kept of them, however many there are."""
    size = blocks.block - blocks.context
    number = -(-total // size)

    def windows(parts: Positions) -> Windows:
        return with_context(parts * size, np.minimum((parts + 1) * size, total), blocks)

    # The first ones find less context before them, and the last may be shorter itself.
    num_first = min(-(-blocks.context // size), number - 1)
    few = np.append(np.arange(num_first), number - 1)
    few_lengths, others = _lengths(windows(few)), number - len(few)
    if not sorts:
        lengths = np.insert(few_lengths, num_first, blocks.block)
        counts = np.insert(np.ones_like(few), num_first, others)
        return Rows(_runs(lengths, counts), windows)
    few = few[np.argsort(few_lengths, kind="stable")]
    lengths = np.append(np.sort(few_lengths), blocks.block)
    counts = np.append(np.ones_like(few), others)

    def sorted_windows(places: Positions) -> Windows:
        among_few = few[np.minimum(places, len(few) - 1)]
        return windows(np.where(places < len(few), among_few, places - len(few) + num_first))

    return Rows(_runs(lengths, counts), sorted_windows)


def _runs(lengths: Positions, counts: Positions) -> Runs:
    return Runs.of(lengths[counts > 0], counts[counts > 0])


def _rows_between(bounds: NDArray[Any], blocks: Blocks, sorts: bool) -> Rows:
    lengths = _window_lengths(bounds, blocks)

    def windows(parts: Positions) -> Windows:
        start, end = (bounds[at].astype(np.int64) for at in (parts, parts + 1))
        return with_context(start, end, blocks)

    if not sorts:
        return Rows(Runs.of(lengths), windows)
    order = np.argsort(lengths, kind="stable")
    return Rows(Runs.of(lengths[order]), lambda places: windows(order[places]))


def _window_lengths(bounds: NDArray[Any], blocks: Blocks) -> NDArray[Any]:
    """In a type that is small and sorts fast; piecemeal, for new memory is slow memory."""
    pieces = []
    for at in range(0, len(bounds) - 1, _AT_ONCE):
        near = bounds[at : at + _AT_ONCE + 1].astype(np.int64)
        lengths = _lengths(with_context(near[:-1], near[1:], blocks))
        pieces.append(lengths.astype(np.uint16 if lengths.max() < 1 << 16 else np.int64))
    return np.concatenate(pieces)


def with_context(start: Positions, end: Positions, blocks: Blocks, begin: int = 0) -> Windows:
    """Parts after as much context as there is since `begin` and as a block has room for."""
    room = np.clip(blocks.block - (end - start), 0, blocks.context)
    return Windows(np.maximum(start - room, begin), start, end)


def document_windows(
    begins: Positions, starts: Positions, ends: Positions, blocks: Blocks
) -> Windows:
    """Windows over documents of a stream that know nothing of each other.

    Each is scored from its start on. One that fits into the block is seen whole, a longer one is
    cut into parts of `block - context` tokens.
    """
    fits = ends - begins <= blocks.block
    whole, size = fits & (starts < ends), blocks.block - blocks.context
    parts = [Windows(begins[whole], starts[whole], ends[whole])]
    for begin, start, end in zip(begins[~fits], starts[~fits], ends[~fits], strict=True):
        first = np.arange(start, end, size)
        parts.append(with_context(first, np.minimum(first + size, end), blocks, begin))
    return Windows(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
    )


def batched(windows: Windows, max_tokens: int, *, sorts: bool = True) -> Iterator[Windows]:
    """Windows of similar length together, or in their order, at most `max_tokens` with padding.

    A batch that is large enough to keep the device busy is not made larger at the price of more
    than a tenth of padding.
    """
    lengths = _lengths(windows)
    order: Positions = np.argsort(lengths, kind="stable") if sorts else np.arange(len(lengths))
    lengths, row = lengths[order], 0
    while row < len(lengths):
        some = lengths[row : row + max(1, max_tokens // int(lengths[row]))]
        longest = np.maximum.accumulate(some)
        used, padded = np.cumsum(some), longest * np.arange(1, len(some) + 1)
        is_dense = (10 * padded <= 11 * used) | (used <= max_tokens // _SMALL)
        number = max(1, int(np.argmin(np.append((padded <= max_tokens) & is_dense, False))))
        yield windows[order[row : row + number]]
        row += number


def _lengths(windows: Windows) -> Positions:
    return windows.end - windows.first


def _pack(offsets: NDArray[Any], size: int) -> Positions:
    """The first sentence of every part of whole sentences, and the number of sentences."""
    firsts, sentence, total = array("q", [0]), 0, len(offsets) - 1
    while sentence < total:
        # Where a part must end that begins with sentence i, for many i at once; for so few that
        # all offsets they can reach, with a token a sentence at least, are in the cache.
        start, stop = sentence, min(sentence + _AT_ONCE, total)
        near = offsets[start : min(stop + size, total) + 1]
        limits = near[: stop - start] + np.asarray(size, dtype=offsets.dtype)
        ends = np.searchsorted(near, limits, side="right") - 1
        ends = np.maximum(ends, np.arange(1, stop - start + 1)) + start
        # Where a part begins is known when the one before has ended: the only Python per part.
        view, note = ends.data, firsts.append
        while sentence < stop:
            sentence = view[sentence - start]
            note(sentence)
    return np.array(firsts, dtype=np.int64)


Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Lengths of rows in their order, with equal neighbours taken together: a few numbers, where
    billions of tokens have been cut into blocks of one length or sorted."""

    lengths: Positions
    ends: Positions

    @classmethod
    def of(cls, lengths: NDArray[Any], counts: Positions | None = None) -> Runs:
        """Group equal neighbours; `counts` is the number of rows of each length, by default one."""
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
        """The lengths of rows `start` to `stop`, which may exceed the number of rows."""
        stop = min(stop, self.num_rows)
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        edges = np.clip(np.append(start, self.ends[first : last + 1]), start, stop)
        return np.repeat(self.lengths[first : last + 1], np.diff(edges))


@dataclass(frozen=True)
class Groups:
    """Which rows a batch has, with batches of equally many rows taken together."""

    first_rows: Positions
    """First row of the first batch of each piece."""
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
