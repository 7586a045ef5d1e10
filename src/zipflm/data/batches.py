"""Batches as a pure function of corpus, settings, seed, rank and epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks
from zipflm.data.token_file import Tokens
from zipflm.data.vocabulary import END, PAD
from zipflm.data.windows import Windows, group_runs, rows
from zipflm.model.inputs import UniqueTokens

Numbers = NDArray[np.uint64]

_ROUNDS = 6
_FEWEST_BITS = 3
"""With fewer, some orders of three or four numbers would hardly ever occur."""
_GOLDEN = 0x9E3779B97F4A7C15


class Permutation:
    """A random order of the numbers below any size up to 2**53, computed rather than stored.

    Multiplying by an odd number, adding, and folding high bits onto low ones are invertible below a
    power of two; results outside the range go through again (Kensler, Correlated Multi-Jittered
    Sampling, 2013).
    """

    def __init__(self, *key: int) -> None:
        random = np.random.default_rng(key)
        most = np.iinfo(np.uint64).max
        self._odd = random.integers(most, size=_ROUNDS, dtype=np.uint64, endpoint=True) | 1
        self._added = random.integers(most, size=_ROUNDS, dtype=np.uint64, endpoint=True)

    def __call__(
        self, places: NDArray[np.int64], sizes: NDArray[np.int64] | int, labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number at each place, below its entry in `sizes`, in the order of its label.

        With fewer than 16 numbers some orders are slightly more likely than others.
        """
        limits = np.broadcast_to(sizes, places.shape).astype(np.uint64)
        bits = np.maximum(_bit_lengths(limits - 1), _FEWEST_BITS)
        masks, folds = (np.uint64(1) << bits) - 1, (bits + 1) >> np.uint64(1)
        numbers, mixed = places.astype(np.uint64), _mixed(labels)
        outside = np.arange(len(places))
        while len(outside):
            numbers[outside] = self._permute(
                numbers[outside], mixed[outside], masks[outside], folds[outside]
            )
            outside = outside[numbers[outside] >= limits[outside]]
        return numbers.astype(np.int64)

    def _permute(
        self, numbers: Numbers, labels: Numbers, masks: Numbers, folds: Numbers
    ) -> Numbers:
        for odd, added in zip(self._odd, self._added, strict=True):
            numbers = ((numbers ^ labels) * odd + added) & masks
            labels = labels >> np.uint64(7)
            numbers ^= numbers >> folds
        return numbers


def _bit_lengths(numbers: Numbers) -> Numbers:
    return np.frexp(numbers.astype(np.float64))[1].astype(np.uint64)


def _mixed(labels: NDArray[np.int64]) -> Numbers:
    """Hash labels so that every bit of the result depends on every bit of the label."""
    mixed = (labels.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_GOLDEN)
    return mixed ^ (mixed >> np.uint64(32))


_MOST_AT_ONCE, _ROWS_AT_ONCE = 64, 1 << 14
"""Maximum batches and rows to locate in one step; NumPy is slow on single batches."""

_UNIQUE_SIZES = 16
"""Number of sizes for unique tokens. A compiled model has a version for each size."""
_UNIQUE_MARGIN = 1.125
"""Extra room, so that a later batch rarely needs a larger size."""


@dataclass(frozen=True)
class Batch:
    """The tokens of one step, each [B, T]. Shorter rows are padded on the right with `<pad>`."""

    words: Tensor
    """Inputs: the targets shifted by one. The first input of a stream is `</s>`."""
    targets: Tensor
    scored: Tensor
    """False on padding and on context."""
    unique: UniqueTokens | None = None
    """The inputs with each word once, for input layers that are expensive per word."""

    @property
    def inputs(self) -> Tensor | UniqueTokens:
        """Input for the model."""
        return self.words if self.unique is None else self.unique

    def with_unique_tokens(self, least: int = 0) -> Batch:
        """Return a batch with `unique` filled in, padded to at least `least` words."""
        return replace(self, unique=unique_tokens(self.words, least))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self.map(Tensor.pin_memory)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the batch."""
        return self.words, self.targets, self.scored, *(self.unique or ())

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to all tensors."""
        unique = None if self.unique is None else UniqueTokens(*map(change, self.unique))
        return Batch(change(self.words), change(self.targets), change(self.scored), unique)


def unique_tokens(words_BT: Tensor, least: int = 0) -> UniqueTokens:
    """Return the distinct words of a text, padded to one of a few sizes, at least `least`."""
    ids, indices_BT = torch.unique(words_BT, return_inverse=True)
    size = least
    if len(ids) > least:
        step = -(-words_BT.numel() // _UNIQUE_SIZES)
        size = math.ceil(_UNIQUE_MARGIN * len(ids) / step) * step
    return UniqueTokens(torch.cat([ids, ids[-1:].expand(size - len(ids))]), indices_BT)


def batch_of(ids: NDArray[Any], windows: Windows) -> Batch:
    """Return the batch of the given windows of the stream `ids`."""
    reach = max(1, int((windows.end - windows.first).max()))
    # One gather for inputs and targets, which are one step apart.
    places = windows.first[:, None] + np.arange(-1, reach)
    inside = places < windows.end[:, None]
    gathered = ids[np.where(inside, np.maximum(places, 0), 0)].astype(np.int64)
    gathered[places < 0] = END
    gathered[~inside] = PAD
    words, targets = gathered[:, :-1].copy(), gathered[:, 1:].copy()
    # The gather above left the final token of each row as an input, with no target to predict.
    words[~inside[:, 1:]] = PAD
    scored = inside[:, 1:] & (places[:, 1:] >= windows.start[:, None])
    return Batch(torch.from_numpy(words), torch.from_numpy(targets), torch.from_numpy(scored))


class Batches:
    """The batches of one split for one rank.

    Batch i of an epoch goes to rank `i % world_size`. All ranks get the same number of batches; a
    surplus batch at the end has no scored tokens.
    """

    def __init__(
        self,
        tokens: Tokens,
        blocks: Blocks,
        *,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool,
        streams: int = 0,
        in_order: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`max_tokens` includes padding; a longer sentence is a batch of its own.

        With `shuffle`, rows of similar length are batched together and batches come in random
        order. Without it, `none` and `complete` keep the order of the stream, as does `sentence`
        with `in_order`. `stream` always keeps it, and cuts the text into `streams` stretches, a
        multiple of the rows per batch (the default).
        """
        if blocks.has_one_length and max_tokens < blocks.block:
            raise ValueError(f"max_tokens={max_tokens}: smaller than a block ({blocks.block})")
        if len(tokens.ids) == 0:
            raise ValueError("cannot make batches from an empty split")
        tokens.require_whole()
        self.tokens: Tokens = tokens
        self.blocks: Blocks = blocks
        self._ids = tokens.ids
        shuffle = shuffle and blocks.break_mode != "stream"
        self._seed, self._shuffle = seed, shuffle
        self._rank, self._world_size = rank, world_size
        sorts = shuffle or (blocks.break_mode == "sentence" and not in_order)
        stretches = streams or max_tokens // blocks.block
        self._rows = rows(tokens, blocks, sorts=sorts, streams=stretches)
        self._groups = group_runs(self._rows.runs, max_tokens)
        largest = int(self._groups.sizes.max())
        self._at_once = max(1, min(_MOST_AT_ONCE, _ROWS_AT_ONCE // largest))

    def __len__(self) -> int:
        """Batches per epoch on each rank."""
        return -(-self.num_batches // self._world_size)

    @property
    def num_batches(self) -> int:
        """Batches per epoch on all ranks together."""
        return len(self._groups)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, beginning with batch `start`."""
        first, end = epoch * self.num_batches, (epoch + 1) * self.num_batches
        mine = range(first + start * self._world_size + self._rank, end, self._world_size)
        yield from self.numbered(mine)
        if start + len(mine) < len(self):
            yield self.batch(epoch, len(self) - 1)

    def numbered(self, numbers: Iterable[int]) -> Iterator[Batch]:
        """Yield batches by their numbers in the sequence of all epochs and ranks."""
        remaining = iter(numbers)
        while some := list(islice(remaining, self._at_once)):
            for epoch, group in groupby(some, lambda number: number // self.num_batches):
                for windows in self._windows(epoch, [n % self.num_batches for n in group]):
                    yield self._read(windows)

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` of this rank."""
        return self._read(self.windows(epoch, index))

    def windows(self, epoch: int, index: int) -> Windows:
        """Return the windows of batch `index` of this rank."""
        place = index * self._world_size + self._rank
        is_surplus = place >= self.num_batches
        windows = next(self._windows(epoch, [0 if is_surplus else place]))
        return Windows(windows.first, windows.end, windows.end) if is_surplus else windows

    def _read(self, windows: Windows) -> Batch:
        self.tokens.require_whole()
        return batch_of(self._ids, windows)

    def _windows(self, epoch: int, places: list[int]) -> Iterator[Windows]:
        """Yield the windows of batches by their places in an epoch."""
        self.tokens.require_whole()
        random = Permutation(self._seed, epoch) if self._shuffle else None
        runs, turns = self._rows.runs, np.array(places, dtype=np.int64)
        if random is not None:
            turns = random(turns, self.num_batches, np.full_like(turns, len(runs)))
        first_rows, sizes = self._groups.rows(turns)
        ends = np.cumsum(sizes)
        at = np.arange(ends[-1]) + np.repeat(first_rows + sizes - ends, sizes)
        if random is not None:  # shuffle rows of the same length
            run = np.searchsorted(runs.ends, at, side="right")
            first = runs.starts[run]
            at = first + random(at - first, runs.ends[run] - first, run)
        windows = self._rows.windows(at)
        for size, end in zip(sizes, ends, strict=True):
            yield windows[end - size : end]
