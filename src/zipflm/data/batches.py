"""Plans of batches: which tokens of a stream a step sees, and which of them it scores.

A stream is cut into parts that cover every token once (`cut`); a part with the context before it
is a window; windows of similar length make a batch. All of it is a pure function of the tokens and
the arguments, so `(epoch, start)` resumes it anywhere. Section 4.3 of the paper; knows ids only.

Example: with `block=5, context=2` the parts of ten tokens are 0-3, 3-6, 6-9, 9-10, and the second
window is 1-6, in which the targets 3, 4 and 5 are scored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks, BreakMode
from zipflm.data.tokens import Tokens
from zipflm.data.vocabulary import END, PAD
from zipflm.distinct_words import DistinctWords, distinct_words

Positions = NDArray[np.int64]

_SENTENCES = 1 << 14
_ROWS = 1 << 14
"""As many at a time as a processor's cache has room for."""
_MOST_ROWS = 256
"""Of a batch; larger ones are so few that they may take their time."""
_SHORT_RUN = 4
"""Rows of one length, on average; where there are more, whole runs are batched at once."""


@dataclass(frozen=True)
class Batch:
    """One step's tokens, each [B, T]; shorter rows are padded on the right with `<pad>`."""

    words: Tensor
    """Inputs: the targets one step earlier; before the first token of a stream stands `</s>`."""
    targets: Tensor
    scored: Tensor
    """False on padding and on context."""
    distinct: DistinctWords | None = None
    """The inputs once more, each word once, where somebody has asked for that."""

    @property
    def inputs(self) -> Tensor | DistinctWords:
        """What a model is given."""
        return self.words if self.distinct is None else self.distinct

    def with_distinct_words(self, least: int = 0) -> Batch:
        """With `distinct`, of at least so many words; on the host."""
        return replace(self, distinct=distinct_words(self.words, least))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self.map(Tensor.pin_memory)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it holds."""
        return self.words, self.targets, self.scored, *(self.distinct or ())

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Every tensor changed."""
        distinct = None if self.distinct is None else DistinctWords(*map(change, self.distinct))
        return Batch(change(self.words), change(self.targets), change(self.scored), distinct)


@dataclass(frozen=True)
class Windows:
    """The rows of one batch as positions in the stream: targets are `first` to `end`, of which
    those from `start` on are scored."""

    first: Positions
    start: Positions
    end: Positions


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


def _pack(offsets: NDArray[Any], size: int) -> Positions:
    """The first sentence of every part of whole sentences, and the number of sentences."""
    firsts, sentence, total = array("q", [0]), 0, len(offsets) - 1
    while sentence < total:
        # Where a part must end that begins with sentence i, for many i at once; for so few that
        # all offsets they can reach, with a token a sentence at least, are in the cache.
        start, stop = sentence, min(sentence + _SENTENCES, total)
        near = offsets[start : min(stop + size, total) + 1]
        limits = near[: stop - start] + np.asarray(size, dtype=offsets.dtype)
        ends = np.searchsorted(near, limits, side="right") - 1
        ends = np.maximum(ends, np.arange(1, stop - start + 1)) + start
        sentence = _follow(ends, start, stop, firsts)
    return np.array(firsts, dtype=np.int64)


def _follow(ends: Positions, start: int, stop: int, bounds: array[int]) -> int:
    """Go from `start` to `ends` of it and on, until `stop`, and note every place on the way.

    The only Python per part or batch, 0.1 microseconds of it: where one begins is known when the
    one before has ended.
    """
    view, place, note = ends.data, start, bounds.append
    while place < stop:
        place = view[place - start]
        note(place)
    return place


def group(lengths: NDArray[Any], max_tokens: int) -> Positions:
    """Boundaries of batches over rows in the given order.

    As many rows as fit into `max_tokens` padded to the longest; a row that is longer goes alone.
    """
    run_ends = np.append(np.flatnonzero(np.diff(lengths)) + 1, len(lengths))
    if _SHORT_RUN * len(run_ends) > len(lengths):
        return _group_rows(lengths, max_tokens)
    return _group_runs(lengths, run_ends, max_tokens)


def _group_runs(lengths: NDArray[Any], run_ends: Positions, max_tokens: int) -> Positions:
    """Rows of one length fill batches of one size, however many: almost all of a text in blocks, or
    of one whose rows are sorted."""
    bounds, row, run = [np.zeros(1, dtype=np.int64)], 0, 0
    while row < len(lengths):
        most = max(1, max_tokens // int(lengths[row]))
        while run_ends[run] <= row:
            run += 1
        full = (int(run_ends[run]) - row) // most
        if full:
            bounds.append(row + most * np.arange(1, full + 1))
            row += full * most
        else:
            row = _end_of_batch(lengths, row, max_tokens)
            bounds.append(np.array([row]))
    return np.concatenate(bounds)


def _group_rows(lengths: NDArray[Any], max_tokens: int) -> Positions:
    """Rows whose lengths change all the time: where a batch must end that begins with row i, for
    many i at once."""
    bounds, row, total = array("q", [0]), 0, len(lengths)
    while row < total:
        near = lengths[row : row + _ROWS].astype(np.int64)
        sizes, most = _rows_that_fit(near, max_tokens)
        # Of the last rows it is not known what comes behind them.
        known = len(near) if row + len(near) == total else len(near) - most
        if most == _MOST_ROWS or known <= 0:
            row = _end_of_batch(lengths, row, max_tokens)
            bounds.append(row)
        else:
            row = _follow(np.arange(row, row + len(near)) + sizes, row, row + known, bounds)
    return np.array(bounds, dtype=np.int64)


def _rows_that_fit(lengths: Positions, max_tokens: int) -> tuple[Positions, int]:
    """How many rows a batch has that begins with row i, and the most of them; no more are tried
    than `_MOST_ROWS`."""
    sizes, longest = np.ones(len(lengths), dtype=np.int64), lengths
    for size in range(2, min(_MOST_ROWS, len(lengths)) + 1):
        longest = np.maximum(longest[:-1], lengths[size - 1 :])
        fits = longest * size <= max_tokens
        if not fits.any():
            return sizes, size - 1
        sizes[: len(fits)] += fits
    return sizes, min(_MOST_ROWS, len(lengths))


def _end_of_batch(lengths: NDArray[Any], row: int, max_tokens: int) -> int:
    most = max(1, max_tokens // int(lengths[row]))
    longest = np.maximum.accumulate(lengths[row : row + most].astype(np.int64))
    fitting = np.count_nonzero(longest * np.arange(1, len(longest) + 1) <= max_tokens)
    return row + max(1, int(fitting))


def batch_of(ids: NDArray[Any], windows: Windows) -> Batch:
    """The batch whose rows lie in the stream `ids` where `windows` says."""
    reach = int((windows.end - windows.first).max())
    # One gather serves inputs and targets, which are one step apart.
    places = windows.first[:, None] + np.arange(-1, reach)
    inside = places < windows.end[:, None]
    gathered = ids[np.where(inside, np.maximum(places, 0), 0)].astype(np.int64)
    gathered[places < 0] = END
    gathered[~inside] = PAD
    words, targets = gathered[:, :-1].copy(), gathered[:, 1:].copy()
    # The input before a row's end is its last: nothing beyond it belongs to the row.
    words[~inside[:, 1:]] = PAD
    scored = inside[:, 1:] & (places[:, 1:] >= windows.start[:, None])
    return Batch(torch.from_numpy(words), torch.from_numpy(targets), torch.from_numpy(scored))


class Batches:
    """The batches of one split for one rank; `epoch` yields them, `windows` says where they lie.

    Batch i of the plan goes to rank `i % world_size`. All ranks have equally many; where the plan
    runs out, a rank gets a batch with nothing scored.
    """

    def __init__(
        self,
        tokens: Tokens,
        blocks: Blocks,
        *,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`max_tokens` counts padding; a sentence longer than that makes a batch of its own. With
        `shuffle` rows are sorted by length in random tie order and batches come in random order;
        without, `none` and `complete` keep the stream's order.
        """
        _check(blocks, max_tokens, rank, world_size)
        if len(tokens.ids) == 0:
            raise ValueError("cannot cut batches from a split with no token")
        self.tokens, self.blocks = tokens, blocks
        self._ids = tokens.ids
        self._seed, self._shuffle = seed, shuffle
        self._rank, self._world_size = rank, world_size
        self._bounds = cut(tokens, blocks.break_mode, blocks.block - blocks.context)
        self._sorts = shuffle or blocks.break_mode == "sentence"
        self._lengths = self._window_lengths()
        # A stable sort of small integers takes time with their number alone.
        lengths = np.sort(self._lengths, kind="stable") if self._sorts else self._lengths
        self._groups = group(lengths, max_tokens)
        self._epoch, self._order, self._turns = -1, _NOTHING, _NOTHING

    def __len__(self) -> int:
        """Batches of one epoch on this rank, the same on every rank."""
        return -(-self.num_batches // self._world_size)

    @property
    def num_batches(self) -> int:
        """Batches of one epoch on all ranks together."""
        return len(self._groups) - 1

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from the `start`-th on."""
        for index in range(start, len(self)):
            yield self.batch(epoch, index)

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index` of this rank."""
        return batch_of(self._ids, self.windows(epoch, index))

    def windows(self, epoch: int, index: int) -> Windows:
        """Where batch `index` of this rank lies in the stream."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        self.tokens.require_whole()
        order, turns = self._plan(epoch)
        place = index * self._world_size + self._rank
        surplus = place >= self.num_batches
        number = int(turns[0 if surplus else place])
        rows = order[self._groups[number] : self._groups[number + 1]].astype(np.int64)
        start, end = (self._bounds[at].astype(np.int64) for at in (rows, rows + 1))
        return Windows(end - self._lengths[rows], end if surplus else start, end)

    def _window_lengths(self) -> NDArray[Any]:
        """Tokens of every part with its context, in a type that is small and sorts fast."""
        lengths = np.diff(self._bounds)
        block, context = self.blocks.block, self.blocks.context
        longest = max(int(lengths.max()), block)
        lengths = lengths.astype(np.uint16 if longest < 1 << 16 else np.int64)
        if context:
            room = np.clip(block - lengths.astype(np.int64), 0, context)
            room = np.minimum(room, self._bounds[:-1].astype(np.int64))
            lengths = lengths + room.astype(lengths.dtype)
        return lengths

    def _plan(self, epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The order of the rows and of the batches; the last one asked for is kept."""
        if self._epoch != epoch:
            rows = np.arange(len(self._lengths), dtype=np.uint32)
            turns = np.arange(self.num_batches, dtype=np.uint32)
            if self._shuffle:
                random = np.random.default_rng([self._seed, epoch])
                random.shuffle(rows)
                random.shuffle(turns)
            if self._sorts:
                rows = rows[np.argsort(self._lengths[rows], kind="stable")]
            self._order, self._turns, self._epoch = rows, turns, epoch
        return self._order, self._turns


_NOTHING: NDArray[Any] = np.zeros(0, dtype=np.uint32)


def _check(blocks: Blocks, max_tokens: int, rank: int, world_size: int) -> None:
    if max_tokens < 1 or (blocks.break_mode == "none" and max_tokens < blocks.block):
        raise ValueError(f"max_tokens={max_tokens}: a block of {blocks.block} tokens does not fit")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}: must lie below world_size={world_size}")
