"""Bands: a frequency-ordered vocabulary split into a head with wide vectors and tails with narrower
ones (section 3 of the paper).

Adaptive input and output layers each have a `Bands`. They can share weights only if the two are
equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING

from zipflm.messages import quoted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Bands:
    """A partition of `vocab_size` word ids, most frequent first.

    Band 0 (the head) has the ids below `cutoffs[0]` and width `dim`. Band i has the next ids below
    `cutoffs[i]` and width `floor(dim / factor**i)`. The last band has the remaining ids (a last
    cutoff equal to `vocab_size` is dropped).

    >>> bands = Bands(vocab_size=267744, cutoffs=(20000, 60000), dim=1024, factor=4)
    >>> bands.sizes
    (20000, 40000, 207744)
    >>> bands.widths
    (1024, 256, 64)
    """

    vocab_size: int
    cutoffs: tuple[int, ...]
    dim: int
    factor: float = 4

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim"):
            value = index(getattr(self, name))  # converts NumPy integers
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
            object.__setattr__(self, name, value)
        try:
            cutoffs = tuple(map(index, self.cutoffs))
        except TypeError:
            raise ValueError(
                f"cutoffs={quoted(self.cutoffs)}: give a tuple of integers, e.g. (20000,)"
            ) from None
        if any(low >= high for low, high in pairwise((0, *cutoffs))):
            raise ValueError(
                f"cutoffs={quoted(cutoffs)}: cutoffs must be positive and increasing; they are the "
                "cumulative ends of the bands, e.g. (20000, 60000) for bands of 20000 and 40000"
            )
        if cutoffs and cutoffs[-1] == self.vocab_size:
            cutoffs = cutoffs[:-1]
        object.__setattr__(self, "cutoffs", cutoffs)
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"factor={quoted(self.factor)}: tails cannot be wider than the head; use 1 "
                "(equal widths) or more (the paper uses 4)"
            )
        if self.cutoffs and self.cutoffs[-1] > self.vocab_size:
            raise ValueError(
                f"cutoffs={quoted(self.cutoffs)}: cutoff {quoted(self.cutoffs[-1])} exceeds "
                f"vocab_size={self.vocab_size}; lower or drop it"
            )
        # Stop at the first band that is too narrow: later powers may overflow.
        band = next((band for band in range(self.num_bands) if not self._width(band)), None)
        if band is not None:
            raise ValueError(
                f"factor={self.factor}: band {band} would have width floor({self.dim} / "
                f"{self.factor}**{band}) = 0; use a smaller factor, fewer cutoffs or a larger dim"
            )

    @classmethod
    def suggest(
        cls,
        counts: ArrayLike,
        *,
        dim: int,
        factor: float = 4,
        budget: int | None = None,
        tails: int | None = None,
    ) -> Bands:
        """Suggest bands for a text in which id i occurs `counts[i]` times, most frequent first.

        Trades off vector width against the time of the output layer, with at most `budget`
        parameters and, if given, this number of `tails`. See `model.band_search.suggest`.

        >>> counts = [1_000_000 // rank for rank in range(1, 50_001)]
        >>> bands = Bands.suggest(counts, dim=512, budget=6_000_000)
        """
        from zipflm.model.band_search import suggest

        return suggest(counts, dim=dim, factor=factor, budget=budget, tails=tails).bands

    def explain(self, counts: ArrayLike) -> str:
        """Summarize sizes, coverage and cost for a text with these counts in one line."""
        from zipflm.model.band_search import weigh

        return weigh(self, counts).explanation

    @property
    def num_bands(self) -> int:
        return len(self.cutoffs) + 1

    @property
    def num_tails(self) -> int:
        return len(self.cutoffs)

    @property
    def edges(self) -> tuple[int, ...]:
        """First id of every band, then `vocab_size`."""
        return (0, *self.cutoffs, self.vocab_size)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in pairwise(self.edges))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self._width(band) for band in range(self.num_bands))

    def _width(self, band: int) -> int:
        return int(self.dim // self.factor**band)
