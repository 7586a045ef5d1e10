"""Choose the cutoffs of adaptive bands from word counts.

Cutoffs trade off parameters, output-layer time and vector width. A larger head gives more words
wide vectors but costs parameters, and time for every token, because every token is scored against
the full head. A tail is narrow, and costs time mainly for tokens in its band. `suggest` maximizes

    score = log(mean width) - TRADE * log(cost)        with at most `budget` parameters,

where the mean width is the geometric mean over the running text and cost is the time of the output
layer per token. Minimizing only time, as Grave et al. (2017) do, would shrink the paper's head to a
tenth of its size, because it ignores the loss from narrower vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipflm.model.bands import Bands

Cutoffs = NDArray[np.int64]
"""Candidate cutoffs, one candidate per column: [tails, candidates]."""
Values = NDArray[np.float64]
"""One value per candidate."""


@dataclass(frozen=True)
class Costs:
    """Costs of the output layer, forward and backward, in multiply-adds of the head.

    `benchmarks/band_costs.py` measures them. docs/results/bands.md explains the values below.
    """

    per_logit: float
    """Cost per logit in addition to its multiply-adds: exponentials, the gradient."""
    tail_product: float
    """Cost of a multiply-add of a tail, whose matrices are thin and whose rows must be gathered."""
    per_tail: float
    """Fixed cost of a tail per token of the batch."""


H200 = Costs(per_logit=0.0, tail_product=4.0, per_tail=2.2e6)
"""One NVIDIA H200, bfloat16, 32,768 tokens per batch."""
CPU = Costs(per_logit=45.0, tail_product=1.5, per_tail=5e3)
"""One core of an AMD EPYC, float32, 1,024 tokens per batch."""
DEVICES = {"h200": H200, "cpu": CPU}

TRADE = 0.075
"""Value of time relative to width: saving 10% of the time is worth about 0.8% of the width. With
this value, the best bands for WikiText-103 on an H200 with the paper's number of parameters have
two tails, like the paper's, with similar cutoffs."""

MAX_TAILS = 3
"""Maximum number of suggested tails."""
MIN_TAIL_WIDTH = 2
"""Minimum width of suggested tails, unless the number of tails is given. Tails of this width still
helped for the rarest words of the demo text (docs/results/bands.md)."""

_PAPER_VOCABULARY, _PAPER_CUTOFFS = 267_744, (20_000, 60_000)

# Number of special tokens at the start, which need not be ordered by count.
_UNORDERED = 4

# Size of the first, geometric grid, size of each finer grid, and maximum number of finer grids.
_GRID, _ZOOM, _ROUNDS = 96, 9, 40


@dataclass(frozen=True)
class WeighedBands:
    """Bands and their statistics on a text with given counts."""

    bands: Bands
    coverage: tuple[float, ...]
    """Fraction of the running text in every band."""
    params: int
    """Parameters of an adaptive input and softmax that share tables and projections (ADP-T)."""
    cost: float
    """Time of the output layer per token, in multiply-adds of the head."""
    mean_width: float
    """Geometric mean of the vector width over the running text."""

    @property
    def score(self) -> float:
        return float(np.log(self.mean_width) - TRADE * np.log(self.cost))

    @property
    def explanation(self) -> str:
        """A one-line summary."""
        parts = [
            f"{size:,} words {width} wide ({share:.1%} of the text)"
            for size, width, share in zip(
                self.bands.sizes, self.bands.widths, self.coverage, strict=True
            )
        ]
        return (
            f"{', then '.join(parts)}: {self.params:,} parameters, mean width "
            f"{self.mean_width:.1f}, cost per token {self.cost / 1e6:.3g}M multiply-adds"
        )


def paper_bands(vocab_size: int, dim: int, factor: float = 4, max_tails: int = 2) -> Bands:
    """Scale the paper's WikiText-103 bands to another vocabulary size.

    There are at most `max_tails` tails, and fewer if `vocab_size` or `dim` is too small.
    """
    head, second = (cutoff * vocab_size // _PAPER_VOCABULARY for cutoff in _PAPER_CUTOFFS)
    head = max(head, 1)
    cutoffs = [cut for cut in (head, max(second, head + 1)) if cut < vocab_size][:max_tails]
    while dim // factor ** len(cutoffs) < 1 and cutoffs:
        cutoffs.pop()
    return Bands(vocab_size, tuple(cutoffs), dim, factor)


def weigh(bands: Bands, counts: ArrayLike, costs: Costs = H200) -> WeighedBands:
    """Compute the statistics of bands on a text. `counts` has the count of every id, most frequent
    first."""
    problem = _Problem.from_counts(counts, bands.dim, bands.factor, costs)
    if problem.vocab_size != bands.vocab_size:
        raise ValueError(
            f"counts: got {problem.vocab_size:,} for bands of {bands.vocab_size:,} words; "
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
    """Find the bands with the best score on a text with these counts.

    `counts` has the number of occurrences of every id, most frequent first (the first four can be
    special tokens in any order). `budget` is the maximum number of parameters of an input and an
    output layer that share tables and projections (default: that of `paper_bands`). `tails` is the
    number of tails (default: the best of 0 to 3). `coverage` is the minimum fraction of the running
    text in the head. The result is deterministic: ties go to fewer tails and earlier cutoffs.
    """
    problem = _Problem.from_counts(counts, dim, factor, costs, coverage)
    tail_counts = _possible_tails(problem.vocab_size, dim, factor, tails)
    if budget is None:
        reference = paper_bands(problem.vocab_size, dim, factor, max_tails=max(tail_counts))
        budget = problem.weigh(reference).params
    candidates = [problem.find_best(count, budget) for count in tail_counts]
    choices = [problem.weigh(bands) for bands in candidates if bands is not None]
    if not choices:
        minimum = min(problem.weigh(problem.smallest(count)).params for count in tail_counts)
        raise ValueError(
            f"budget={budget}: {problem.vocab_size:,} words with dim={dim}, factor={factor}"
            f" and {coverage:.0%} of the text in the head need at least {minimum:,} parameters; "
            "raise the budget or the factor, or lower dim or the coverage"
        )
    return max(choices, key=lambda choice: choice.score)


def _possible_tails(vocab_size: int, dim: int, factor: float, tails: int | None) -> list[int]:
    if tails is not None:
        if not 0 <= tails <= MAX_TAILS or tails >= vocab_size or dim // factor**tails < 1:
            raise ValueError(
                f"tails={tails}: must be 0 to {MAX_TAILS}, below the vocabulary size "
                f"{vocab_size:,}, and leave each tail a width of at least 1 (dim={dim}, "
                f"factor={factor})"
            )
        return [tails]
    max_tails = min(MAX_TAILS, vocab_size - 1)
    return [0] + [n for n in range(1, max_tails + 1) if dim // factor**n >= MIN_TAIL_WIDTH]


@dataclass(frozen=True)
class _Problem:
    """The search problem. Private methods evaluate many candidate cutoffs at a time."""

    covered: NDArray[np.float64]
    """Fraction of the running text in the first 0, 1, ... V ids."""
    dim: int
    factor: float
    costs: Costs
    smallest_head: int = 1
    """Minimum number of words in the head."""

    @classmethod
    def from_counts(
        cls, counts: ArrayLike, dim: int, factor: float, costs: Costs, coverage: float = 0.0
    ) -> _Problem:
        if not 0 <= coverage <= 1:
            raise ValueError(f"coverage={coverage}: must be a fraction of the text, 0 to 1")
        values = _check_counts(counts)
        covered = np.concatenate([[0.0], np.cumsum(values)])
        Bands(len(values), (), dim, factor)  # checks dim and factor
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
        params, log_width, cost = (float(value[0]) for value in self._evaluate(cutoffs))
        return WeighedBands(
            bands,
            coverage=tuple(np.diff(self.covered[list(bands.edges)]).tolist()),
            params=int(params),
            cost=cost,
            mean_width=float(np.exp(log_width)),
        )

    def smallest(self, tails: int) -> Bands:
        """Return the bands with the fewest parameters."""
        last = self.vocab_size - 1
        cutoffs = (min(self.smallest_head + tail, last) for tail in range(tails))
        return Bands(self.vocab_size, tuple(sorted(set(cutoffs))), self.dim, self.factor)

    def find_best(self, tails: int, budget: int) -> Bands | None:
        """Find the best bands with this number of tails, or None if none is within the budget.

        Tries all combinations of a geometric grid, then of finer and finer grids around the best.
        """
        if self.smallest_head + tails > self.vocab_size:
            return None
        last = max(self.vocab_size - 1, self.smallest_head)
        grid = np.geomspace(self.smallest_head, last, _GRID).round()
        axes = [np.unique(grid.astype(np.int64))] * tails
        best = self._best_on_grid(axes, budget)
        for _ in range(_ROUNDS):
            if best is None or all(np.diff(axis).max(initial=1) == 1 for axis in axes):
                break
            axes = [self._refine(cut, axis) for cut, axis in zip(best, axes, strict=True)]
            best = self._best_on_grid(axes, budget, best)
        if best is None:
            return None
        return Bands(self.vocab_size, tuple(best), self.dim, self.factor)

    def _best_on_grid(
        self, axes: Sequence[Cutoffs], budget: int, known: Sequence[int] | None = None
    ) -> list[int] | None:
        cuts = np.concatenate(list(self._candidates(axes, budget, known)), axis=1)
        sizes = np.diff(cuts, axis=0, prepend=0, append=self.vocab_size)
        cuts = cuts[:, (sizes > 0).all(axis=0) & (sizes[0] >= self.smallest_head)]
        params, log_width, cost = self._evaluate(cuts)
        scores = np.where(params <= budget, log_width - TRADE * np.log(cost), -np.inf)
        if not np.isfinite(scores).any():
            return None
        return [int(cut) for cut in cuts[:, np.argmax(scores)]]

    def _candidates(
        self, axes: Sequence[Cutoffs], budget: int, known: Sequence[int] | None
    ) -> Iterator[Cutoffs]:
        if known is not None:
            yield np.array(known, dtype=np.int64).reshape(-1, 1)
        yield _combinations(axes)
        if not axes:
            return
        # The best cutoffs usually use the full budget, which a grid would miss, so also try the
        # largest last cutoff within the budget.
        others, widths = _combinations(axes[:-1]), self.widths(len(axes))
        nearest = others[-1:] + 1 if len(others) else np.ones((1, 1), dtype=np.int64)
        params, _, _ = self._evaluate(np.concatenate([others, nearest]))
        spare = (budget - params) // max(widths[-2] - widths[-1], 1)
        furthest = nearest + spare.astype(np.int64)
        yield np.concatenate([others, furthest.clip(1, self.vocab_size - 1)])

    def _refine(self, cut: int, axis: Cutoffs) -> Cutoffs:
        """Return a finer grid between the neighbors of a cutoff on the previous grid."""
        index = int(np.searchsorted(axis, cut))
        low, high = axis[max(index - 1, 0)], axis[min(index + 1, len(axis) - 1)]
        low, high = max(min(low, cut), 1), min(max(high, cut), self.vocab_size - 1)
        return np.unique(np.linspace(low, high, _ZOOM).round().astype(np.int64))

    def _evaluate(self, cutoffs: Cutoffs) -> tuple[Values, Values, Values]:
        """Return the number of parameters, the log of the mean width, and the cost per token."""
        tails, widths, per_logit = len(cutoffs), self.widths(len(cutoffs)), self.costs.per_logit
        ends = np.full((1, cutoffs.shape[1]), self.vocab_size)
        edges = np.concatenate([np.zeros_like(ends), cutoffs, ends])
        shares, sizes = np.diff(self.covered[edges], axis=0), np.diff(edges, axis=0)
        # Tables, projections, and the head's vectors for the tails.
        params = widths @ sizes + self.dim * (widths.sum() + tails)
        cost = (sizes[0] + tails) * (self.dim + per_logit)
        # Every token is projected for every tail, but only scored in the tail of its target.
        cost = cost + tails * self.costs.per_tail + self.dim * widths[1:].sum()
        rows = (widths[1:] + per_logit) @ (shares[1:] * sizes[1:])
        return params, np.log(widths) @ shares, cost + self.costs.tail_product * rows


def _combinations(axes: Sequence[Cutoffs]) -> Cutoffs:
    """Return all combinations of one cutoff per axis, as columns."""
    if not axes:
        return np.zeros((0, 1), dtype=np.int64)
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])


def _check_counts(counts: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(counts, dtype=np.float64)
    if not values.any():
        raise ValueError("counts: all are 0; give the number of occurrences of every id")
    rises = np.flatnonzero(np.diff(values[_UNORDERED:]) > 0)
    if len(rises):
        index = int(rises[0]) + _UNORDERED + 1
        raise ValueError(
            f"counts: id {index:,} occurs {values[index]:g} times, more than the id before it; "
            "renumber the ids by descending count: with order = np.argsort(counts)[::-1], pass "
            "counts[order] here and np.argsort(order)[ids] to the layers"
        )
    return values
