"""Mean losses and paired differences with 95 % intervals, from blocks of the text and seeds.

A difference is measured block by block on the same text, so whatever makes a block hard for both
models cancels. The interval is the estimate plus or minus Student's t times its standard error.
Both depend on how many independent sources the text has, which is not known: each source may
suit one of the models better over a long stretch of text. So the series of blocks is explained in
several ways, each weighed by how well it fits:

- all blocks are independent: the spread of n blocks, with n - 1 degrees of freedom;
- there are k sources, for several k and strengths: the expected power of cosine waves along the
  text then falls as a squared sinc, and the k / 2 slowest waves, at least two, give the variance
  of the mean and its degrees of freedom (not k - 1: sources of unequal length count for fewer);
- there are two sources, with one step between them. If that fits much better than everything
  else, there is no interval: two observations say too little.

Averaging over explanations protects against correlation over any distance, not only between
neighbours. Where a model was trained with several seeds, their variance is added, with degrees of
freedom from both (Satterthwaite). `benchmarks/interval_coverage.py` measures the coverage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from zipflm.analysis.frequency_bins import FloatArray, IntArray
from zipflm.analysis.student_t import quantile, two_sided_p
from zipflm.units import perplexity

_FEWEST_BLOCKS = 3
"""With words in fewer blocks than this, a spread would be a guess."""
_SOURCES = (3, 4, 6, 12)
_STRENGTHS = np.array([2.0, 8.0, 32.0, 128.0, 1024.0])
"""Variance that sources add to the mean, relative to independent blocks."""
_ROUNDING = 1e-12
"""Smaller residuals, in nats, are rounding errors."""
_TWO_SOURCES = 9
"""How many times as probable as all else two sources must be for an interval to be left out."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def negated(self) -> Interval:
        return Interval(estimate=-self.estimate, low=-self.high, high=-self.low)

    @property
    def as_perplexity(self) -> Interval:
        """Of nats per word, perplexities; of a difference in nats, their ratio."""
        return Interval(
            estimate=perplexity(self.estimate),
            low=perplexity(self.low),
            high=perplexity(self.high),
        )


@dataclass(frozen=True)
class Estimate:
    """A mean loss, or a difference of two, and how far chance may have moved it."""

    value: float
    residuals: FloatArray
    """How much each block, in the order of the text, moves the value."""
    num_blocks: float
    """Blocks with words in them; one that has most of the words makes them count for fewer."""
    seeds: tuple[tuple[float, int], ...]
    """Variance of a mean over seeds and its degrees of freedom, for every model in it that has
    several."""
    has_all_seeds: bool
    """Whether every model in it has several, so that the interval covers the training too."""

    def __sub__(self, other: Estimate) -> Estimate:
        """Paired: both are measured on the same blocks."""
        return Estimate(
            self.value - other.value,
            self.residuals - other.residuals,
            min(self.num_blocks, other.num_blocks),
            self.seeds + other.seeds,
            self.has_all_seeds and other.has_all_seeds,
        )

    @property
    def interval(self) -> Interval | None:
        """None where the text has too few blocks or sources to tell."""
        if self.num_blocks < _FEWEST_BLOCKS - 1e-9 or not np.isfinite(self.residuals).all():
            return None
        found = _explain(self.residuals, self.num_blocks)
        if found is None:
            return None
        weights, text, degrees = found
        variance = text + sum(part for part, _ in self.seeds)
        reach = 0.0
        if variance.any():
            squares = text**2 / degrees + sum(part**2 / own for part, own in self.seeds)
            reach = _reach(weights, np.sqrt(variance), np.floor(variance**2 / squares + 1e-9))
        return Interval(estimate=self.value, low=self.value - reach, high=self.value + reach)


def mean_of(sums: FloatArray, counts: FloatArray) -> Estimate:
    """The mean of `counts` [blocks] words whose losses add up to `sums` [seeds, blocks]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = counts / counts.sum()
        by_seed = sums.sum(axis=1) / counts.sum()
        residuals = (sums.mean(axis=0) - by_seed.mean() * counts) / counts.sum()
        # A large block pulls the mean towards itself, away from what the others would give.
        residuals *= (1 - 1 / np.count_nonzero(counts)) / (1 - shares)
        num_blocks = 1 / (shares @ shares)
    return estimate(by_seed, residuals, float(num_blocks))


def estimate(by_seed: FloatArray, residuals: FloatArray, num_blocks: float) -> Estimate:
    """Build an estimate from the value of every seed and the residuals of their mean."""
    several = len(by_seed) > 1
    variance = float(np.var(by_seed, ddof=1)) / len(by_seed) if several else 0.0
    return Estimate(
        float(np.mean(by_seed)),
        residuals,
        num_blocks,
        ((variance, len(by_seed) - 1),) if several and variance > 0 else (),
        several,
    )


class _Explanations(NamedTuple):
    """Ways to explain a series of blocks; the first is that all are independent."""

    cosines: FloatArray
    """[waves, blocks], the slowest wave first."""
    power: FloatArray
    """[explanations, 1 + waves]: expected power of the mean and of every wave."""
    degrees: IntArray
    steps: FloatArray
    """[places, blocks]: one step, of unit length and zero mean."""


@cache
def _explanations(blocks: int) -> _Explanations:
    places = np.arange(blocks)
    cosines = math.sqrt(2 / blocks) * np.cos(np.pi / blocks * np.outer(places, places + 0.5))
    sources = [number for number in _SOURCES if number < blocks]
    waves = [np.sinc(places / (2 * number)) ** 2 for number in sources]
    power = np.vstack([np.ones(blocks), *(1 + np.outer(_STRENGTHS, wave) for wave in waves)])
    slow = np.repeat([max(2, number // 2) for number in sources], len(_STRENGTHS))
    degrees = np.append(blocks - 1, slow).astype(np.int64)
    # A source of fewer blocks could not be told from a single block that is unlike the others.
    fewest = min(max(2, blocks // 6), blocks // 2)
    steps = np.tril(np.ones((blocks, blocks)))[fewest - 1 : blocks - fewest]
    steps -= steps.mean(axis=1, keepdims=True)
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    return _Explanations(cosines[1:], power, degrees, steps)


def _explain(
    residuals: FloatArray, num_blocks: float
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Weight, variance of the mean and degrees of freedom of every explanation; None if there seem
    to be two sources."""
    if np.abs(residuals).max() < _ROUNDING:
        return np.ones(1), np.zeros(1), np.ones(1)
    blocks = len(residuals)
    cosines, power, degrees, steps = _explanations(blocks)
    waves = (cosines @ residuals) ** 2 / (residuals @ residuals)
    scaled = waves / power[:, 1:]
    # Every number of sources is as probable beforehand as any other; the scale is integrated out.
    fit = -(np.log(power[:, 1:]).sum(axis=1) + (blocks - 1) * np.log(scaled.sum(axis=1))) / 2
    fit[0] += math.log(len(_STRENGTHS))
    explained = np.outer(_STRENGTHS / (1 + _STRENGTHS), (steps @ residuals) ** 2)
    rest = waves.sum() - explained / (residuals @ residuals)
    of_steps = -(np.log1p(_STRENGTHS)[:, None] + (blocks - 1) * np.log(rest)) / 2
    of_steps -= math.log(len(steps))
    best = max(fit.max(), of_steps.max())
    weights = np.exp(fit - best)
    if np.exp(of_steps - best).sum() > _TWO_SOURCES * weights.sum():
        return None
    slow = np.arange(1, blocks) <= degrees[:, None]
    variance = power[:, 0] * (scaled * slow).sum(axis=1) / degrees * (residuals @ residuals)
    # Blocks without words add nothing to the spread.
    variance *= (blocks - 1) * num_blocks / (num_blocks - 1)
    return weights / weights.sum(), variance, np.minimum(degrees, num_blocks - 1)


def _reach(weights: FloatArray, errors: FloatArray, degrees: FloatArray) -> float:
    """The distance that a mixture of t distributions exceeds once in twenty times."""
    errors = np.maximum(errors, 1e-9 * errors.max())
    groups = [(int(number), degrees == number) for number in np.unique(degrees)]
    ends = np.concatenate([quantile(number) * errors[own] for number, own in groups])
    low, high = ends.min(), ends.max()
    for _ in range(2):
        reaches = np.linspace(low, high, 30)
        outside = np.zeros(len(reaches))
        for number, own in groups:
            outside += two_sided_p(reaches[:, None] / errors[own], number) @ weights[own]
        place = int(np.clip(np.count_nonzero(outside > 0.05), 1, len(reaches) - 1))
        low, high = reaches[place - 1 : place + 1]
    return float(np.interp(-0.05, np.negative(outside), reaches))
