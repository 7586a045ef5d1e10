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

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipflm.model.bands import Bands

Edges = NDArray[np.int64]
"""Candidate edges of the bands (`Bands.edges`), one candidate per column."""
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

# Size of the first grid, size of each finer grid, and number of grids.
_GRID, _ZOOM, _ROUNDS = 96, 9, 20


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
    costs: Costs = H200,
) -> WeighedBands:
    """Find the bands with the best score on a text with these counts.

    `counts` has the number of occurrences of every id, most frequent first (the first four can be
    special tokens in any order). `budget` is the maximum number of parameters of an input and an
    output layer that share tables and projections (default: that of `paper_bands`). `tails` is the
    number of tails (default: the best of 0 to 3). The result is deterministic: ties go to fewer
    tails and earlier cutoffs.
    """
    problem = _Problem.from_counts(counts, dim, factor, costs)
    tail_counts = _possible_tails(problem.vocab_size, dim, factor, tails)
    if budget is None:
        reference = paper_bands(problem.vocab_size, dim, factor, max_tails=max(tail_counts))
        budget = problem.weigh(reference).params
    candidates = [problem.find_best(count, budget) for count in tail_counts]
    choices = [problem.weigh(bands) for bands in candidates if bands is not None]
    if not choices:
        smallest = (problem.bands(range(1, count + 1)) for count in tail_counts)
        minimum = min(problem.weigh(bands).params for bands in smallest)
        raise ValueError(
            f"budget={budget}: {problem.vocab_size:,} words with dim={dim}, factor={factor} need "
            f"at least {minimum:,} parameters; raise the budget or the factor, or lower dim"
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
    """The search problem. Private methods evaluate many candidate edges at a time."""

    covered: NDArray[np.float64]
    """Fraction of the running text in the first 0, 1, ... V ids."""
    dim: int
    factor: float
    costs: Costs

    @classmethod
    def from_counts(cls, counts: ArrayLike, dim: int, factor: float, costs: Costs) -> _Problem:
        values = _check_counts(counts)
        Bands(len(values), (), dim, factor)  # checks dim and factor
        covered = np.concatenate([[0.0], np.cumsum(values)])
        return cls(covered / covered[-1], dim, factor, costs)

    @property
    def vocab_size(self) -> int:
        return len(self.covered) - 1

    def bands(self, cutoffs: Iterable[int]) -> Bands:
        return Bands(self.vocab_size, tuple(cutoffs), self.dim, self.factor)

    def weigh(self, bands: Bands) -> WeighedBands:
        edges = np.array(bands.edges).reshape(-1, 1)
        params, log_width, cost = (float(value[0]) for value in self._evaluate(edges))
        return WeighedBands(
            bands,
            coverage=tuple(np.diff(self.covered[list(bands.edges)]).tolist()),
            params=int(params),
            cost=cost,
            mean_width=float(np.exp(log_width)),
        )

    def find_best(self, tails: int, budget: int) -> Bands | None:
        """Find the best bands with this number of tails, or None if none is within the budget.

        Tries all combinations of a geometric grid, then of finer and finer grids around the best.
        """
        last = max(self.vocab_size - 1, 1)
        spacing = last ** (1 / (_GRID - 1))
        axes = [_grid(1, last, _GRID)] * tails
        for _ in range(_ROUNDS):
            best = self._best_of(axes, budget)
            if best is None:
                return None
            axes = [_grid(cut / spacing, min(cut * spacing, last), _ZOOM) for cut in best.cutoffs]
            spacing = spacing**0.5
        return best

    def _best_of(self, axes: list[Edges], budget: int) -> Bands | None:
        """Find the best combination of one cutoff per axis."""
        ends = np.array([0]), np.array([self.vocab_size])
        combinations = np.stack(np.meshgrid(ends[0], *axes, ends[1], indexing="ij"))
        edges = _increasing(combinations.reshape(len(combinations), -1))
        if axes:
            # The best cutoffs usually use the full budget, which a grid would miss, so also try the
            # largest last cutoff within the budget.
            full, widths = edges.copy(), self._widths(len(axes))
            spare = (budget - self._evaluate(edges)[0]) // max(widths[-2] - widths[-1], 1)
            full[-2] += spare.astype(np.int64)
            edges = np.concatenate([edges, _increasing(full)], axis=1)
        params, log_width, cost = self._evaluate(edges)
        scores = np.where(params <= budget, log_width - TRADE * np.log(cost), -np.inf)
        best = np.argmax(scores)
        return self.bands(edges[1:-1, best]) if np.isfinite(scores[best]) else None

    def _widths(self, tails: int) -> Values:
        return np.array([float(self.dim // self.factor**band) for band in range(tails + 1)])

    def _evaluate(self, edges: Edges) -> tuple[Values, Values, Values]:
        """Return the number of parameters, the log of the mean width, and the cost per token."""
        tails, per_logit = len(edges) - 2, self.costs.per_logit
        widths = self._widths(tails)
        shares, sizes = np.diff(self.covered[edges], axis=0), np.diff(edges, axis=0)
        # Tables, projections, and the head's vectors for the tails.
        params = widths @ sizes + self.dim * (widths.sum() + tails)
        cost = (sizes[0] + tails) * (self.dim + per_logit)
        # Every token is projected for every tail, but only scored in the tail of its target.
        cost = cost + tails * self.costs.per_tail + self.dim * widths[1:].sum()
        rows = (widths[1:] + per_logit) @ (shares[1:] * sizes[1:])
        return params, np.log(widths) @ shares, cost + self.costs.tail_product * rows


def _grid(first: float, last: float, size: int) -> Edges:
    return np.unique(np.geomspace(first, last, size).round().astype(np.int64))


def _increasing(edges: Edges) -> Edges:
    """Select the candidates without empty bands."""
    return edges[:, (np.diff(edges, axis=0) > 0).all(axis=0)]


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
