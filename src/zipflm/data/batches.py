"""Batches, determined only by the corpus, settings, seed, epoch, rank and world size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import END, PAD
from zipflm.data.windows import Windows, group, rows
from zipflm.model.inputs import UniqueTokens

Numbers = NDArray[np.uint64]

_ROUNDS = 6
_MIN_BITS = 3
"""With fewer, some orders of three or four numbers would hardly ever occur."""
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, a common hash multiplier


class Permutation:
    """A random permutation of `range(size)`, for sizes up to 2**53, computed on demand.

    Multiplication by an odd number and addition, both modulo a power of two, and xor of high bits
    into low ones are invertible. Results outside the range are permuted again (Kensler, Correlated
    Multi-Jittered Sampling, 2013).
    """

    def __init__(self, *key: int) -> None:
        random = np.random.default_rng(key)
        largest = np.iinfo(np.uint64).max
        self._odd = random.integers(largest, size=_ROUNDS, dtype=np.uint64, endpoint=True) | 1
        self._added = random.integers(largest, size=_ROUNDS, dtype=np.uint64, endpoint=True)

    def __call__(
        self,
        positions: NDArray[np.int64],
        sizes: NDArray[np.int64] | int,
        labels: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the number at each position of a permutation of `range(size)`.

        Each position has its own size and label; labels select different permutations. For sizes
        below 16, some permutations are slightly more likely than others.
        """
        limits = np.broadcast_to(sizes, positions.shape).astype(np.uint64)
        bits = np.maximum(_bit_lengths(limits - 1), _MIN_BITS)
        masks, folds = (np.uint64(1) << bits) - 1, (bits + 1) >> np.uint64(1)
        numbers, mixed = positions.astype(np.uint64), _hash(labels)
        outside = np.arange(len(positions))
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


def _hash(labels: NDArray[np.int64]) -> Numbers:
    """Hash labels so that every bit of the result depends on every bit of the label."""
    mixed = (labels.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_GOLDEN)
    return mixed ^ (mixed >> np.uint64(32))


_PREFETCHED = 4
"""Number of batches that `prefetch` assembles in advance."""

_MAX_BATCHES_PER_STEP, _MAX_ROWS_PER_STEP = 64, 1 << 14
"""Maximum number of batches and rows to compute at once: NumPy is slow on single batches."""


@dataclass(frozen=True)
class Batch:
    """The tokens of one forward pass. Shorter rows are padded on the right with `<pad>`."""

    words: Tensor
    """Input ids [B, T]: the token before each target, or `</s>` if there is none."""
    targets: Tensor
    """Ids to predict [B, T]."""
    scored: Tensor
    """Mask [B, T]: False on padding and on context."""
    unique: UniqueTokens | None = None
    """The deduplicated inputs, for input layers that are expensive per token."""

    @property
    def inputs(self) -> Tensor | UniqueTokens:
        """Inputs of the model: `unique` if it is set, else `words`."""
        return self.words if self.unique is None else self.unique

    def with_unique_tokens(self) -> Batch:
        """Return a batch with `unique` filled in."""
        return replace(self, unique=unique_tokens(self.words))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self.map(Tensor.pin_memory)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the batch."""
        return self.words, self.targets, self.scored, *(self.unique or ())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to all tensors."""
        unique = None if self.unique is None else UniqueTokens(*map(function, self.unique))
        return Batch(function(self.words), function(self.targets), function(self.scored), unique)


def unique_tokens(words_BT: Tensor) -> UniqueTokens:
    return UniqueTokens(*torch.unique(words_BT, return_inverse=True))


def batch_of(ids: NDArray[Any], windows: Windows) -> Batch:
    """Return the batch for windows of the stream `ids`."""
    length = max(1, int((windows.end - windows.first).max()))
    # One gather for inputs and targets, which are shifted by one.
    positions = windows.first[:, None] + np.arange(-1, length)
    inside = positions < windows.end[:, None]
    gathered = ids[np.where(inside, np.maximum(positions, 0), 0)].astype(np.int64)
    gathered[positions < 0] = END
    gathered[~inside] = PAD
    words, targets = gathered[:, :-1].copy(), gathered[:, 1:].copy()
    # The last token of each row is only a target.
    words[~inside[:, 1:]] = PAD
    scored = inside[:, 1:] & (positions[:, 1:] >= windows.start[:, None])
    return Batch(torch.from_numpy(words), torch.from_numpy(targets), torch.from_numpy(scored))


class Batches:
    """The batches of one split for one rank.

    Batch i of an epoch goes to rank `i % world_size`. All ranks get the same number of batches: if
    the batches do not divide evenly, some ranks end with one without scored tokens.
    """

    def __init__(
        self,
        tokens: TokenArray,
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
        """Create the batches. `max_tokens` includes padding; a longer sentence gets its own batch.

        With `shuffle`, rows of similar length are batched together, and the batches and the rows of
        equal length are in random order. Without it, break modes `none` and `complete` keep the
        order of the text, and so does `sentence` if `in_order` is set.

        Break mode `stream` ignores `shuffle`. It cuts the text into `streams` equal segments
        and takes one block of each in turn, in order. `streams` must be a multiple of the
        number of rows per batch; 0 means that number.
        """
        if blocks.has_one_length and max_tokens < blocks.block:
            raise ValueError(f"max_tokens={max_tokens}: smaller than a block ({blocks.block})")
        if len(tokens.ids) == 0:
            raise ValueError("cannot create batches from an empty split")
        self.tokens: TokenArray = tokens
        self.blocks: Blocks = blocks
        shuffle = shuffle and blocks.break_mode != "stream"
        self._seed, self._shuffle = seed, shuffle
        self._rank, self._world_size = rank, world_size
        sort_by_length = shuffle or (blocks.break_mode == "sentence" and not in_order)
        num_segments = streams or max_tokens // blocks.block
        self._rows = rows(tokens, blocks, sort_by_length=sort_by_length, streams=num_segments)
        self._bounds = group(self._rows.runs, max_tokens)
        largest = int(np.diff(self._bounds).max())
        self._batches_per_step = max(1, min(_MAX_BATCHES_PER_STEP, _MAX_ROWS_PER_STEP // largest))

    def __len__(self) -> int:
        """Return the number of batches per epoch on each rank."""
        return -(-self.num_batches // self._world_size)

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch on all ranks together."""
        return len(self._bounds) - 1

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, starting with batch `start`."""
        first, end = epoch * self.num_batches, (epoch + 1) * self.num_batches
        positions = range(first + start * self._world_size + self._rank, end, self._world_size)
        yield from self.numbered(positions)
        if start + len(positions) < len(self):
            yield self.batch(epoch, len(self) - 1)

    def numbered(self, positions: Iterable[int]) -> Iterator[Batch]:
        """Yield batches by their position in the sequence of all epochs and ranks."""
        remaining = iter(positions)
        while step := list(islice(remaining, self._batches_per_step)):
            for epoch, same in groupby(step, lambda position: position // self.num_batches):
                for windows in self._windows(epoch, [p % self.num_batches for p in same]):
                    yield batch_of(self.tokens.ids, windows)

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` of this rank."""
        return batch_of(self.tokens.ids, self.windows(epoch, index))

    def windows(self, epoch: int, index: int) -> Windows:
        """Return the windows of batch `index` of this rank."""
        position = index * self._world_size + self._rank
        is_surplus = position >= self.num_batches
        windows = next(self._windows(epoch, [0 if is_surplus else position]))
        return Windows(windows.first, windows.end, windows.end) if is_surplus else windows

    def _windows(self, epoch: int, positions: list[int]) -> Iterator[Windows]:
        """Yield the windows of batches by their position in an epoch."""
        random = Permutation(self._seed, epoch) if self._shuffle else None
        runs, batches = self._rows.runs, np.array(positions, dtype=np.int64)
        if random is not None:
            batches = random(batches, self.num_batches, np.full_like(batches, len(runs)))
        first_rows = self._bounds[batches]
        sizes = self._bounds[batches + 1] - first_rows
        ends = np.cumsum(sizes)
        indices = np.arange(ends[-1]) + np.repeat(first_rows + sizes - ends, sizes)
        if random is not None:  # shuffle rows of the same length
            run = np.searchsorted(runs.ends, indices, side="right")
            first = runs.starts[run]
            indices = first + random(indices - first, runs.ends[run] - first, run)
        windows = self._rows.windows(indices)
        for size, end in zip(sizes, ends, strict=True):
            yield windows[end - size : end]


def prefetch(batches: Iterable[Batch], device: torch.device | str) -> Generator[Batch]:
    """Yield batches on a device. A thread assembles a few of them in advance.

    Closing the generator stops the thread.
    """
    device, remaining = torch.device(device), iter(batches)

    def load() -> Batch | None:
        batch = next(remaining, None)
        return batch.pin_memory() if batch is not None and device.type == "cuda" else batch

    thread = ThreadPoolExecutor(1, thread_name_prefix="zipflm-loader")
    try:
        waiting = deque(thread.submit(load) for _ in range(_PREFETCHED))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(load))
            yield batch.to(device, non_blocking=True)
    finally:
        thread.shutdown(cancel_futures=True)
