"""Where to cut a vocabulary into bands, given how often each word occurs.

Three things pull at the cutoffs: parameters, the time of the output layer, and how wide the
vectors are. A word of the head is wide, costs parameters, and makes every token dearer, since all
of them are scored against the whole head; a word of a tail is narrow and costs time only when the
text enters its band. `suggest` looks for the cut with the best

    score = log(mean width) - TRADE * log(cost)        with at most `budget` parameters,

where the mean width is the geometric mean over the running text (so that two halvings of a rare
word's vector weigh as much as one of a word twice as frequent), and cost is the time of the output
layer for one token. Counting time alone, as Grave et al. (2017) do, would shrink the paper's head
to a tenth, because time does not see what narrow vectors lose.

Knows counts, not words, and needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipflm.model.bands import Bands

Cutoffs = NDArray[np.int64]
"""Cuts to be compared, one a column: [tails, cuts]."""


@dataclass(frozen=True)
class Costs:
    """What the parts of the output layer cost, forward and backward, in products of the head.

    A product is one multiply-add per token of a wide layer. `benchmarks/band_costs.py` measures
    them; docs/results/bands.md says where those below are from.
    """

    per_logit: float
    """Work on a logit besides its products: exponentials, the gradient."""
    tail_product: float
    """A product of a tail, whose matrices are thin and whose rows must be gathered."""
    per_tail: float
    """A tail in itself, however small, for each token of a batch."""


H200 = Costs(per_logit=0.0, tail_product=4.0, per_tail=2.2e6)
"""One NVIDIA H200, bfloat16, 32,768 tokens at once."""
CPU = Costs(per_logit=45.0, tail_product=1.5, per_tail=5e3)
"""One core of an AMD EPYC, float32, 1,024 tokens at once."""
DEVICES = {"h200": H200, "cpu": CPU}

TRADE = 0.075
"""How much width a saving of time is worth: 10 % of the time are as good as 0.75 % of the width.
This is the paper's own trade: on WikiText-103's counts, with the paper's number of parameters and
an H200's speeds, two tails come out best, as the paper has, with cutoffs near its own."""

MAX_TAILS = 3
NARROWEST = 2
"""Width below which no tail is suggested unless a number of tails is asked for. So narrow a band
still paid for the rarest words of the demo's text (docs/results/bands.md)."""

_PAPER_VOCABULARY, _PAPER_CUTOFFS = 267_744, (20_000, 60_000)

# Ids in front that stand outside the order of counts, as the specials of a vocabulary do.
_UNORDERED = 4

# Positions tried for a cutoff at first, evenly by ratio, and around the best one afterwards.
_GRID, _ZOOM, _ROUNDS = 96, 9, 40


@dataclass(frozen=True)
class WeighedBands:
    """Bands with what they give and take on a text with certain counts."""

    bands: Bands
    coverage: tuple[float, ...]
    """Share of the running text in every band."""
    params: int
    """Of an adaptive input and an adaptive softmax that share tables and projections (ADP-T)."""
    cost: float
    """Time of the output layer for one token, in products of the head."""
    mean_width: float
    """Geometric mean, over the running text, of the width of a word's vector."""

    @property
    def score(self) -> float:
        """What `suggest` maximises."""
        return float(np.log(self.mean_width) - TRADE * np.log(self.cost))

    @property
    def explanation(self) -> str:
        """The bands in one line."""
        parts = [
            f"{size:,} words {width} wide ({share:.1%} of the text)"
            for size, width, share in zip(
                self.bands.sizes, self.bands.widths, self.coverage, strict=True
            )
        ]
        return (
            f"{', then '.join(parts)}: {self.params:,} parameters, a mean width of "
            f"{self.mean_width:.1f}, and {self.cost / 1e6:.3g}M products' time per token"
        )


def paper_bands(vocab_size: int, dim: int, factor: float = 4, most_tails: int = 2) -> Bands:
    """The paper's bands for WikiText-103, in the same proportions for another vocabulary.

    With fewer tails where `most_tails` says so, or where there are too few words or too little
    width for them.
    """
    head, second = (cutoff * vocab_size // _PAPER_VOCABULARY for cutoff in _PAPER_CUTOFFS)
    head = max(head, 1)
    cutoffs = [cut for cut in (head, max(second, head + 1)) if cut < vocab_size][:most_tails]
    while dim // factor ** len(cutoffs) < 1 and cutoffs:
        cutoffs.pop()
    return Bands(vocab_size, tuple(cutoffs), dim, factor)


def weigh(bands: Bands, counts: ArrayLike, costs: Costs = H200) -> WeighedBands:
    """Coverage, parameters, cost and mean width of bands on a text with these counts.

    `counts` holds the number of occurrences of every id, most frequent first.
    """
    problem = _Problem.of(counts, bands.dim, bands.factor, costs)
    if problem.vocab_size != bands.vocab_size:
        raise ValueError(
            f"counts: {problem.vocab_size:,} of them for bands of {bands.vocab_size:,} words; "
            "give one count per id"
        )
    return problem.weigh(bands)


def suggest(
    counts: ArrayLike,
    *,
    dim: int,
    factor: float = 4,
    budget: int | None = None,
    tails: int | None = None,
    coverage: float = 0.0,
    costs: Costs = H200,
) -> WeighedBands:
    """The best bands for a text with these counts, by the score above.

    `counts` holds the number of occurrences of every id, most frequent first (the first four may
    be specials and stand anywhere). `budget` is the most parameters a tied pair may have; as many
    as the paper's proportions need, unless given. `tails` is the number of tails; the best of 0 to
    3 unless given. `coverage` is the least share of the running text that the head must hold. Ties
    go to fewer tails and earlier cutoffs, so that the result is always the same.
    """
    problem = _Problem.of(counts, dim, factor, costs, coverage)
    numbers = _numbers_of_tails(problem.vocab_size, dim, factor, tails)
    if budget is None:
        reference = paper_bands(problem.vocab_size, dim, factor, most_tails=max(numbers))
        budget = problem.weigh(reference).params
    found = [problem.best(number, budget) for number in numbers]
    choices = [problem.weigh(bands) for bands in found if bands is not None]
    if not choices:
        least = min(problem.weigh(problem.least(number)).params for number in numbers)
        raise ValueError(
            f"budget={budget}: {problem.vocab_size:,} words with dim={dim}, factor={factor}"
            f" and {coverage:.0%} of the text in the head need at least {least:,} parameters; "
            "raise the budget or the factor, or lower dim or the coverage"
        )
    return max(choices, key=lambda choice: choice.score)


def _numbers_of_tails(vocab_size: int, dim: int, factor: float, tails: int | None) -> list[int]:
    if tails is not None:
        if not 0 <= tails <= MAX_TAILS or tails >= vocab_size or dim // factor**tails < 1:
            raise ValueError(
                f"tails={tails}: give 0 to {MAX_TAILS}, fewer than the {vocab_size:,} words, and "
                f"so few that dim={dim} can be divided by factor={factor} as often"
            )
        return [tails]
    most = min(MAX_TAILS, vocab_size - 1)
    return [
        number for number in range(most + 1) if not number or dim // factor**number >= NARROWEST
    ]


@dataclass(frozen=True)
class _Problem:
    """Counts and sizes, and the arithmetic on many cuts at once."""

    covered: NDArray[np.float64]
    """Share of the running text in the first 0, 1, ... V ids."""
    dim: int
    factor: float
    costs: Costs
    smallest_head: int = 1
    """In words."""

    @classmethod
    def of(
        cls, counts: ArrayLike, dim: int, factor: float, costs: Costs, coverage: float = 0.0
    ) -> _Problem:
        if not 0 <= coverage <= 1:
            raise ValueError(f"coverage={coverage}: a share of the text, from 0 to 1")
        values = _checked(counts)
        covered = np.concatenate([[0.0], np.cumsum(values)])
        Bands(len(values), (), dim, factor)  # for its messages
        covered /= covered[-1]
        smallest_head = max(int(np.searchsorted(covered, coverage)), 1)
        return cls(covered, dim, factor, costs, smallest_head)

    @property
    def vocab_size(self) -> int:
        return len(self.covered) - 1

    def widths(self, tails: int) -> NDArray[np.float64]:
        return np.array([float(self.dim // self.factor**band) for band in range(tails + 1)])

    def weigh(self, bands: Bands) -> WeighedBands:
        cutoffs = np.array(bands.cutoffs, dtype=np.int64).reshape(-1, 1)
        coverage = np.diff(self.covered[self._edges(cutoffs)[:, 0]])
        log_width, cost = self._gives_and_takes(cutoffs)
        return WeighedBands(
            bands,
            coverage=tuple(coverage.tolist()),
            params=int(self._params(cutoffs)[0]),
            cost=float(cost[0]),
            mean_width=float(np.exp(log_width[0])),
        )

    def least(self, tails: int) -> Bands:
        """Those with the fewest parameters."""
        last = self.vocab_size - 1
        cutoffs = (min(self.smallest_head + tail, last) for tail in range(tails))
        return Bands(self.vocab_size, tuple(sorted(set(cutoffs))), self.dim, self.factor)

    def best(self, tails: int, budget: int) -> Bands | None:
        """The best cut into so many tails, None if none has so few parameters.

        All combinations of a grid even by ratio, then again and again a finer one around the best.
        """
        if tails == 0:
            none = np.zeros((0, 1), dtype=np.int64)
            fits = self._params(none)[0] <= budget
            return Bands(self.vocab_size, (), self.dim, self.factor) if fits else None
        if self.smallest_head + tails > self.vocab_size:
            return None
        grid = np.geomspace(self.smallest_head, self.vocab_size - 1, _GRID).round()
        axes = [np.unique(grid.astype(np.int64))] * tails
        best = self._best_of(axes, budget)
        for _ in range(_ROUNDS):
            if best is None or all(np.diff(axis).max(initial=1) == 1 for axis in axes):
                break
            axes = [self._around(cut, axis) for cut, axis in zip(best, axes, strict=True)]
            best = self._best_of(axes, budget, best)
        if best is None:
            return None
        return Bands(self.vocab_size, tuple(best), self.dim, self.factor)

    def _best_of(
        self, axes: Sequence[Cutoffs], budget: int, known: Sequence[int] | None = None
    ) -> list[int] | None:
        cuts = np.concatenate(list(self._candidates(axes, budget, known)), axis=1)
        cuts = cuts[:, (np.diff(cuts, axis=0, prepend=0, append=self.vocab_size) > 0).all(axis=0)]
        cuts = cuts[:, (cuts[0] >= self.smallest_head) & (self._params(cuts) <= budget)]
        if not cuts.shape[1]:
            return None
        log_width, cost = self._gives_and_takes(cuts)
        return [int(cut) for cut in cuts[:, np.argmax(log_width - TRADE * np.log(cost))]]

    def _candidates(
        self, axes: Sequence[Cutoffs], budget: int, known: Sequence[int] | None
    ) -> Iterator[Cutoffs]:
        if known is not None:
            yield np.array(known, dtype=np.int64).reshape(-1, 1)
        yield _combinations(axes)
        # The best cut mostly spends all of the budget, which no grid would hit: the last cutoff is
        # therefore also tried where the others leave it just enough parameters.
        others, widths = _combinations(axes[:-1]), self.widths(len(axes))
        nearest = others[-1:] + 1 if len(others) else np.ones((1, 1), dtype=np.int64)
        spare = budget - self._params(np.concatenate([others, nearest]))
        furthest = nearest + (spare // max(widths[-2] - widths[-1], 1)).astype(np.int64)
        yield np.concatenate([others, furthest.clip(1, self.vocab_size - 1)])

    def _around(self, cut: int, axis: Cutoffs) -> Cutoffs:
        """Positions between the neighbours of a cutoff among those that were tried."""
        place = int(np.searchsorted(axis, cut))
        low, high = axis[max(place - 1, 0)], axis[min(place + 1, len(axis) - 1)]
        low, high = max(min(low, cut), 1), min(max(high, cut), self.vocab_size - 1)
        return np.unique(np.linspace(low, high, _ZOOM).round().astype(np.int64))

    def _edges(self, cutoffs: Cutoffs) -> Cutoffs:
        ends = np.full((1, cutoffs.shape[1]), self.vocab_size)
        return np.concatenate([np.zeros_like(ends), cutoffs, ends])

    def _params(self, cutoffs: Cutoffs) -> NDArray[np.float64]:
        """Tables, their projections, and the classes of the tails."""
        widths = self.widths(len(cutoffs))
        tables = widths @ np.diff(self._edges(cutoffs), axis=0)
        params: NDArray[np.float64] = tables + self.dim * (widths.sum() + len(cutoffs))
        return params

    def _gives_and_takes(self, cutoffs: Cutoffs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The logarithm of the mean width, and the cost per token."""
        edges, widths = self._edges(cutoffs), self.widths(len(cutoffs))
        shares, sizes = np.diff(self.covered[edges], axis=0), np.diff(edges, axis=0)
        tails, per_logit = len(cutoffs), self.costs.per_logit
        log_width: NDArray[np.float64] = np.log(widths) @ shares
        cost = (sizes[0] + tails) * (self.dim + per_logit)
        # Every token is projected for every tail, and only those of a tail are scored there.
        cost = cost + tails * self.costs.per_tail + self.dim * widths[1:].sum()
        rows = (widths[1:] + per_logit) @ (shares[1:] * sizes[1:])
        return log_width, cost + self.costs.tail_product * rows


def _combinations(axes: Sequence[Cutoffs]) -> Cutoffs:
    """Every choice of one position per axis, a column each."""
    if not axes:
        return np.zeros((0, 1), dtype=np.int64)
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])


def _checked(counts: ArrayLike) -> NDArray[np.float64]:
    """One count per id, falling; ValueError otherwise."""
    values = np.asarray(counts, dtype=np.float64)
    if not values.any():
        raise ValueError("counts: they are all 0; give the number of occurrences of every id")
    rises = np.flatnonzero(np.diff(values[_UNORDERED:]) > 0)
    if len(rises):
        place = int(rises[0]) + _UNORDERED + 1
        raise ValueError(
            f"counts: id {place:,} occurs {values[place]:g} times, more than the one before it; "
            "renumber the ids by falling count: with order = np.argsort(counts)[::-1], give "
            "counts[order] here and np.argsort(order)[ids] to the layers"
        )
    return values
