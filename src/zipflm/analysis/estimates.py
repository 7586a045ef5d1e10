"""Mean losses with 95 % intervals: a paired bootstrap over blocks of the text, and seeds.

Every replicate draws as many blocks as there are, with replacement, and the same ones for every
model; so a difference between two models is measured on the same text in each replicate, and what
makes a block hard for both cancels. The spread of the replicates is the standard error that comes
of the choice of the text. Where a model was trained with several seeds, their variance is added:
the text and the training are two samples, drawn apart. The interval is the estimate plus or minus
that standard error times Student's t, whose degrees of freedom follow from the numbers of blocks
and seeds (Satterthwaite). Both parts are corrected for their small numbers, so that few blocks or
seeds give wide intervals, not false ones. Where neighbouring blocks still have something in common
the standard error grows by what their correlation adds to the variance of a mean. Simulations in
the tests hold the coverage to 95 %.

Percentiles of the replicates, corrected or not (BCa), were not taken: with ten blocks or three
seeds they have no tails to read off, and a mean over thousands of words has no skew to follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from zipflm.analysis.frequency_bins import FloatArray
from zipflm.analysis.student_t import quantile
from zipflm.units import perplexity

REPLICATES = 5_000
_SEED = 20190506
"""The same draws every time: a report does not change when it is written again."""
_FEWEST_BLOCKS = 3
"""With words in fewer blocks than this, a spread would be a guess."""


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
    text: FloatArray
    """Replicates of it, drawn from the blocks of the text."""
    residuals: FloatArray
    """What each block, in the order of the text, contributes to the deviation of the mean."""
    num_blocks: int
    """That have words in them."""
    seeds: tuple[tuple[float, int], ...]
    """Variance of a mean over seeds and its degrees of freedom, for every model in it that has
    several."""
    has_all_seeds: bool
    """Whether every model in it has several, so that the interval covers the training too."""

    def __sub__(self, other: Estimate) -> Estimate:
        """Paired: both have the replicates of the same blocks."""
        return Estimate(
            self.value - other.value,
            self.text - other.text,
            self.residuals - other.residuals,
            min(self.num_blocks, other.num_blocks),
            self.seeds + other.seeds,
            self.has_all_seeds and other.has_all_seeds,
        )

    @property
    def interval(self) -> Interval | None:
        """None where the text has too few blocks to tell."""
        drawn = self.text[np.isfinite(self.text)]
        if self.num_blocks < _FEWEST_BLOCKS or 2 * len(drawn) < len(self.text):
            return None
        # Resampling n blocks spreads by (n - 1) / n of what n new ones would.
        blocks = self.num_blocks
        text = float(np.var(drawn)) * blocks / (blocks - 1) * _likeness_factor(self.residuals)
        parts = [(text, blocks - 1), *self.seeds]
        variance = sum(part for part, _ in parts)
        if variance == 0:
            return Interval(estimate=self.value, low=self.value, high=self.value)
        degrees = variance**2 / sum(part**2 / own for part, own in parts)
        reach = quantile(max(1, math.floor(degrees + 1e-9))) * math.sqrt(variance)
        return Interval(estimate=self.value, low=self.value - reach, high=self.value + reach)


class Resampling:
    """Draws of the blocks of a text, the same for everything that is estimated from it."""

    def __init__(self, num_blocks: int, replicates: int = REPLICATES) -> None:
        random = np.random.default_rng(_SEED)
        drawn = random.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), replicates)
        self.weights: FloatArray = drawn.astype(np.float64)
        """[replicates, blocks]: how often each block was drawn."""

    def mean(self, sums: FloatArray, counts: FloatArray) -> Estimate:
        """The mean loss of the words whose losses add up to `sums` [seeds, blocks], of which there
        are `counts` [blocks]."""
        own = self.weights @ counts
        with np.errstate(invalid="ignore", divide="ignore"):
            text = (self.weights @ sums.mean(axis=0)) / own
            by_seed = sums.sum(axis=1) / counts.sum()
        residuals = sums.mean(axis=0) - by_seed.mean() * counts
        return estimate(by_seed, text, residuals, int(np.count_nonzero(counts)))


def _likeness_factor(residuals: FloatArray) -> float:
    """By how much the variance of a mean exceeds that of as many independent blocks, if each is
    like its neighbour; never below one."""
    total = float((residuals**2).sum())
    if not total > 0:
        return 1.0
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / total
    # Of independent blocks it is a little below zero on average.
    return 1 + 2 * max(0.0, correlation + 1 / len(residuals))


def estimate(
    by_seed: FloatArray, text: FloatArray, residuals: FloatArray, num_blocks: int
) -> Estimate:
    """From the value of every seed, the replicates of their mean and what each block contributes to
    its deviation."""
    several = len(by_seed) > 1
    variance = float(np.var(by_seed, ddof=1)) / len(by_seed) if several else 0.0
    return Estimate(
        float(np.mean(by_seed)),
        text,
        residuals,
        num_blocks,
        ((variance, len(by_seed) - 1),) if several and variance > 0 else (),
        several,
    )
