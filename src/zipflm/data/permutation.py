"""Random orders of so many numbers that nobody would write them down.

The place that a number has is computed when it is asked for, so an order takes neither time nor
memory beforehand: one multiplies by an odd number, adds and folds high bits onto low ones, all of
which can be undone, below the next power of two; what lands outside goes through again until it is
inside, which can be undone as well. The idea is Kensler's (Correlated Multi-Jittered Sampling,
2013).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

_ROUNDS = 6
_FEWEST_BITS = 3
"""With fewer, there are orders of three or four numbers that hardly ever come."""
_GOLDEN = 0x9E3779B97F4A7C15


class Permutation:
    """A random order for every key: of the numbers below any size up to 2**53, for whose bits
    float64 has room."""

    def __init__(self, *key: int) -> None:
        random = np.random.default_rng(key)
        most = np.iinfo(np.uint64).max
        self._odd = random.integers(most, size=_ROUNDS, dtype=np.uint64, endpoint=True) | 1
        self._added = random.integers(most, size=_ROUNDS, dtype=np.uint64, endpoint=True)

    def __call__(
        self, places: NDArray[np.int64], sizes: NDArray[np.int64] | int, labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number at each place, below its own of `sizes`, in the order of its label.

        Of fewer than 16 numbers some orders come a little more often than others.
        """
        limits = np.broadcast_to(sizes, places.shape).astype(np.uint64)
        bits = np.maximum(_bits(limits - 1), _FEWEST_BITS)
        masks, folds = (np.uint64(1) << bits) - 1, (bits + 1) >> np.uint64(1)
        numbers, mixed = places.astype(np.uint64), _mixed(labels)
        outside = np.arange(len(places))
        while len(outside):
            numbers[outside] = self._turned(
                numbers[outside], mixed[outside], masks[outside], folds[outside]
            )
            outside = outside[numbers[outside] >= limits[outside]]
        return numbers.astype(np.int64)

    def _turned(self, numbers: Numbers, labels: Numbers, masks: Numbers, folds: Numbers) -> Numbers:
        for odd, added in zip(self._odd, self._added, strict=True):
            numbers = ((numbers ^ labels) * odd + added) & masks
            labels = labels >> np.uint64(7)
            numbers ^= numbers >> folds
        return numbers


def _bits(numbers: Numbers) -> Numbers:
    """How many each has."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.uint64)


def _mixed(labels: NDArray[np.int64]) -> Numbers:
    """A number for each label, any bit of which may change with any bit of the label."""
    mixed = (labels.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_GOLDEN)
    return mixed ^ (mixed >> np.uint64(32))
