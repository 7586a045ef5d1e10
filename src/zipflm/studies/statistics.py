"""95% intervals of mean losses and their differences, computed over blocks of text.

Student's t distribution is computed without scipy: for integer degrees of freedom it is a finite
sum (Abramowitz and Stegun 26.7.3 and 26.7.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import Vocabulary
from zipflm.studies.bins import (
    BIN_NAMES,
    UNSEEN,
    BoolArray,
    Ends,
    FloatArray,
    FrequencyBin,
    IntArray,
    bin_indices,
)
from zipflm.units import perplexity

_BISECTIONS = 60


def two_sided_p(t: NDArray[np.float64], dof: int) -> NDArray[np.float64]:
    """Return the two-sided p-value of each `t`, with `dof` degrees of freedom.

    >>> two_sided_p(np.array([2.228]), 10).round(3).tolist()
    [0.05]
    """
    angle = np.arctan(np.abs(t) / np.sqrt(dof))
    cosine, sine = np.cos(angle), np.sin(angle)
    is_odd = dof % 2
    # Terms c, 2/3 c^3, 8/15 c^5, ... for odd dof; 1, 1/2 c^2, 3/8 c^4, ... for even dof.
    term = cosine.copy() if is_odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for power in range(is_odd, dof - 1, 2):
        total += term
        term = term * cosine**2 * (power + 1) / (power + 2)
    inside = 2 / np.pi * (angle + sine * total) if is_odd else sine * total
    p: NDArray[np.float64] = np.clip(1 - inside, 0.0, 1.0)
    return p


@cache
def critical_value(dof: int) -> float:
    """Return the two-sided 95% critical value of Student's t distribution.

    >>> round(critical_value(9), 3), round(critical_value(29), 3)
    (2.262, 2.045)
    """
    low, high = 0.0, 1e6
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if two_sided_p(np.array([middle]), dof)[0] > 0.05:
            low = middle
        else:
            high = middle
    return high


BLOCK_COUNTS = (30, 20, 14, 10)
"""Numbers of blocks to try, in this order, until neighboring blocks are not correlated."""
FEW_BLOCKS = 10
"""The report warns about imprecise intervals if there are fewer blocks."""
_NORMAL_QUANTILE = 1.645
"""95% quantile of the standard normal distribution, for a one-sided test."""


@dataclass(frozen=True)
class TextBlocks:
    """A text cut into consecutive blocks."""

    starts: IntArray
    """Index of the first word of each block."""
    num_words: int
    unit: str
    """`documents` or `lines`; none is ever split between blocks."""
    correlation: float
    """Highest lag-one autocorrelation among several series of block means: the loss averaged over
    all models, and the difference between each pair of models."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def are_correlated(self) -> bool:
        """Whether neighboring blocks have a significant positive correlation."""
        return _is_correlated(self.correlation, len(self))

    @property
    def block_of_word(self) -> IntArray:
        """The index of the block that contains each word."""
        lengths = np.diff(np.append(self.starts, self.num_words))
        return np.repeat(np.arange(len(self)), lengths)

    def describe(self) -> str:
        """`30 blocks of whole lines, about 3,200 words each`."""
        length = round(self.num_words / len(self), -2 if self.num_words > 1000 * len(self) else -1)
        words = f"about {int(length) or round(self.num_words / len(self)):,} words each"
        text = f"{len(self)} blocks of whole {self.unit}, {words}"
        if self.are_correlated:
            text += "; neighboring blocks are correlated, which widens the intervals"
        return text


def cut_into_blocks(line_starts: IntArray, headings: IntArray, losses: FloatArray) -> TextBlocks:
    """Cut a text into blocks of similar size, at headings if there are enough, else between lines.

    `line_starts` and `headings` are word indices. `losses` is [models, words].
    """
    num_words = losses.shape[1]
    units, unit = line_starts, "lines"
    if len(headings) >= BLOCK_COUNTS[-1]:
        units, unit = np.union1d([0], headings), "documents"
    for count in BLOCK_COUNTS:
        starts = _even_starts(units, num_words, count)
        lengths = np.diff(np.append(starts, num_words))
        means = np.add.reduceat(losses, starts, axis=1) / lengths
        pairs = [first - second for first, second in combinations(means, 2)]
        correlation = max(
            _lag_one_autocorrelation(series) for series in (means.mean(axis=0), *pairs)
        )
        if not _is_correlated(correlation, len(starts)):
            break
    return TextBlocks(starts, num_words, unit, correlation)


def document_starts(line_starts: IntArray, word_ids: IntArray, equals_sign: int | None) -> IntArray:
    """Return the word indices of WikiText document titles, `= Title =` (not `= = Section = =`).

    `equals_sign` is the id of `=`; None if it has no id.
    """
    if equals_sign is None:
        return np.zeros(0, dtype=np.int64)
    ends = np.append(line_starts[1:], len(word_ids))
    # The shortest heading is `= word = </s>`.
    starts, ends = line_starts[ends - line_starts >= 4], ends[ends - line_starts >= 4]
    has_opening = (word_ids[starts] == equals_sign) & (word_ids[starts + 1] != equals_sign)
    has_closing = (word_ids[ends - 2] == equals_sign) & (word_ids[ends - 3] != equals_sign)
    headings: IntArray = starts[has_opening & has_closing]
    return headings


def _even_starts(units: IntArray, num_words: int, count: int) -> IntArray:
    """Return the unit starts nearest to the starts of `count` equal parts, without duplicates."""
    ideal = np.arange(count) * num_words / count
    after = np.searchsorted(units, ideal).clip(max=len(units) - 1)
    before = np.maximum(after - 1, 0)
    is_nearer = ideal - units[before] < units[after] - ideal
    starts: IntArray = np.unique(np.append(0, units[np.where(is_nearer, before, after)]))
    return starts.astype(np.int64)


def _lag_one_autocorrelation(values: FloatArray) -> float:
    deviations = values - values.mean()
    total = float((deviations**2).sum())
    return float((deviations[1:] * deviations[:-1]).sum()) / total if total > 0 else 0.0


def _is_correlated(correlation: float, num_blocks: int) -> bool:
    return correlation > _NORMAL_QUANTILE / math.sqrt(num_blocks)


MIN_INTERVAL_BLOCKS = 3
"""Minimum number of blocks for an interval."""
# A source is a contiguous part of the text with its own mean loss, such as the work of one author.
# Blocks of the same source are not independent.
_SOURCE_COUNTS = (3, 4, 6, 12)
"""Numbers of sources that the noise models assume."""
_STRENGTHS = np.array([2.0, 8.0, 32.0, 128.0, 1024.0])
"""Variance between sources, relative to that of the source means if all blocks were independent."""
_ROUNDING = 1e-12
"""In nats. Smaller residuals are rounding errors."""
_MAX_STEP_ODDS = 9
"""An interval is omitted if a text of two sources is this many times more probable than all noise
models together: a single step between two sources does not show how much sources vary."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its 95% interval."""

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
        """Perplexity from nats per word, or the ratio of two perplexities from a difference."""
        return Interval(
            estimate=perplexity(self.estimate), low=perplexity(self.low), high=perplexity(self.high)
        )


@dataclass(frozen=True)
class Estimate:
    """A mean loss or the difference of two, with the variance between blocks and between seeds."""

    value: float
    residuals: FloatArray
    """Deviation of each block from the mean, weighted by its share of the words, in text order."""
    num_blocks: float
    """Effective number of blocks; less than their number if their sizes differ."""
    seed_variances: tuple[tuple[float, int], ...]
    """Variance of the mean over seeds and its degrees of freedom, for each model whose loss differs
    between seeds."""
    loss_by_run: Mapping[str, float]
    """Mean loss of every run (one per seed), if known."""

    def __sub__(self, other: Estimate) -> Estimate:
        """Paired difference: both are measured on the same blocks and possibly, such as with and
        without a cache, on the same runs."""
        variances = self.seed_variances + other.seed_variances
        if self.loss_by_run and self.loss_by_run.keys() == other.loss_by_run.keys():
            variances = _seed_variances(
                [loss - other.loss_by_run[run] for run, loss in self.loss_by_run.items()]
            )
        return Estimate(
            self.value - other.value,
            self.residuals - other.residuals,
            min(self.num_blocks, other.num_blocks),
            variances,
            {},
        )

    @property
    def interval(self) -> Interval | None:
        """The 95% interval. None if there are fewer than three effective blocks, if the text seems
        to consist of two sources, or if a loss is not finite."""
        if self.num_blocks < MIN_INTERVAL_BLOCKS - 1e-9 or not np.isfinite(self.residuals).all():
            return None
        fitted = _fit_noise_models(self.residuals, self.num_blocks)
        if fitted is None:
            return None
        weights, text_variance, text_dof = fitted
        variance = text_variance + sum(part for part, _ in self.seed_variances)
        half_width = 0.0
        if variance.any():
            # Welch-Satterthwaite: degrees of freedom of a sum of variances.
            squares = text_variance**2 / text_dof
            squares += sum(part**2 / dof for part, dof in self.seed_variances)
            dof = np.floor(variance**2 / squares + 1e-9)
            half_width = _mixture_half_width(weights, np.sqrt(variance), dof)
        low, high = self.value - half_width, self.value + half_width
        return Interval(estimate=self.value, low=low, high=high)

    @property
    def loss_interval(self) -> Interval | None:
        """The interval of a loss, which cannot be negative."""
        interval = self.interval
        return interval and replace(interval, low=max(0.0, interval.low))


def mean_of(sums: FloatArray, counts: FloatArray, runs: Sequence[str] = ()) -> Estimate:
    """Return the mean loss per word, from loss sums [seeds, blocks] and word counts [blocks].

    `runs` identifies the run of each seed.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = counts / counts.sum()
        by_seed = sums.sum(axis=1) / counts.sum()
        residuals = (sums.mean(axis=0) - by_seed.mean() * counts) / counts.sum()
        # A large block pulls the mean towards its own loss, which makes its residual too small.
        residuals *= (1 - 1 / np.count_nonzero(counts)) / (1 - shares)
        num_blocks = 1 / (shares @ shares)
    return Estimate(
        float(np.mean(by_seed)),
        residuals,
        float(num_blocks),
        _seed_variances(by_seed),
        dict(zip(runs, by_seed.tolist(), strict=bool(runs))),
    )


def _seed_variances(losses: Sequence[float] | FloatArray) -> tuple[tuple[float, int], ...]:
    """Return the variance of the mean of these losses and its degrees of freedom, if there are
    several that differ."""
    num_seeds = len(losses)
    variance = float(np.var(losses, ddof=1)) / num_seeds if num_seeds > 1 else 0.0
    return ((variance, num_seeds - 1),) if variance > 0 else ()


class _NoiseModels(NamedTuple):
    """Models of how the means of blocks vary along the text, as power spectra in a cosine basis.

    In the first model, blocks are independent. The others are all combinations of `_STRENGTHS` with
    those `_SOURCE_COUNTS` that are less than the number of blocks.
    """

    cosines: FloatArray
    """[frequencies, blocks], without the constant, lowest frequency first."""
    power: FloatArray
    """[noise models, 1 + frequencies]: expected power of the constant and of each cosine."""
    dof: IntArray
    """[noise models]: number of low frequencies that the variance of the mean is estimated from."""
    steps: FloatArray
    """[positions, blocks]: a step at each position, of unit length and zero mean."""


@cache
def _noise_models(blocks: int) -> _NoiseModels:
    indices = np.arange(blocks)
    cosines = math.sqrt(2 / blocks) * np.cos(np.pi / blocks * np.outer(indices, indices + 0.5))
    counts = [count for count in _SOURCE_COUNTS if count < blocks]
    spectra = [np.sinc(indices / (2 * count)) ** 2 for count in counts]
    power = np.vstack([np.ones(blocks), *(1 + np.outer(_STRENGTHS, s) for s in spectra)])
    source_dof = np.repeat([max(2, count // 2) for count in counts], len(_STRENGTHS))
    dof = np.append(blocks - 1, source_dof).astype(np.int64)
    # A source with fewer blocks cannot be distinguished from a single outlier.
    min_length = min(max(2, blocks // 6), blocks // 2)
    steps = np.tril(np.ones((blocks, blocks)))[min_length - 1 : blocks - min_length]
    steps -= steps.mean(axis=1, keepdims=True)
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    return _NoiseModels(cosines[1:], power, dof, steps)


def _fit_noise_models(
    residuals: FloatArray, num_blocks: float
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Return the weight, variance of the mean and degrees of freedom of each noise model.

    Returns None if the text seems to consist of two sources.
    """
    if np.abs(residuals).max() < _ROUNDING:
        return np.ones(1), np.zeros(1), np.ones(1)
    blocks = len(residuals)
    cosines, power, dof, steps = _noise_models(blocks)
    observed = (cosines @ residuals) ** 2 / (residuals @ residuals)
    scaled = observed / power[:, 1:]
    # Log posterior of each model, with the scale integrated out. The prior is uniform over the
    # numbers of sources: the model with independent blocks gets the same prior probability as all
    # strengths of one source count together.
    fit = -(np.log(power[:, 1:]).sum(axis=1) + (blocks - 1) * np.log(scaled.sum(axis=1))) / 2
    fit[0] += math.log(len(_STRENGTHS))
    explained = np.outer(_STRENGTHS / (1 + _STRENGTHS), (steps @ residuals) ** 2)
    rest = observed.sum() - explained / (residuals @ residuals)
    step_fit = -(np.log1p(_STRENGTHS)[:, None] + (blocks - 1) * np.log(rest)) / 2
    step_fit -= math.log(len(steps))
    best = max(fit.max(), step_fit.max())
    weights = np.exp(fit - best)
    if np.exp(step_fit - best).sum() > _MAX_STEP_ODDS * weights.sum():
        return None
    is_low = np.arange(1, blocks) <= dof[:, None]
    variance = power[:, 0] * (scaled * is_low).sum(axis=1) / dof * (residuals @ residuals)
    # The variance of the sum of all residuals is the power of the constant times the number of
    # blocks. If their sizes differ, the small-sample correction uses the effective number.
    variance *= (blocks - 1) * num_blocks / (num_blocks - 1)
    return weights / weights.sum(), variance, np.minimum(dof, num_blocks - 1)


def _mixture_half_width(weights: FloatArray, errors: FloatArray, dof: FloatArray) -> float:
    """Return the half-width of the 95% interval of a mixture of t distributions.

    `errors` are the standard errors of the components.
    """
    errors = np.maximum(errors, 1e-9 * errors.max())
    same_dof = [(int(value), dof == value) for value in np.unique(dof)]
    widths = np.concatenate([critical_value(n) * errors[chosen] for n, chosen in same_dof])
    low, high = widths.min(), widths.max()
    for _ in range(2):
        half_widths = np.linspace(low, high, 30)
        outside = np.zeros(len(half_widths))
        for n, chosen in same_dof:
            outside += two_sided_p(half_widths[:, None] / errors[chosen], n) @ weights[chosen]
        index = int(np.clip(np.count_nonzero(outside > 0.05), 1, len(half_widths) - 1))
        low, high = half_widths[index - 1 : index + 1]
    return float(np.interp(-0.05, np.negative(outside), half_widths))


class Sample:
    """The scored text as a sample of blocks."""

    def __init__(
        self,
        word_ids: IntArray,
        line_starts: IntArray,
        vocabulary: Vocabulary,
        nll: Mapping[str, FloatArray],
        reference: str,
        runs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`nll` maps each model to an array [seeds, words], and `runs` to the run of each seed. In
        bins, models are compared to `reference`."""
        self._counts, self._nll, self._reference = vocabulary.counts, nll, reference
        self._runs = runs or {}
        starts = np.asarray(line_starts, dtype=np.int64)
        means = [losses.mean(axis=0) for losses in nll.values()] or [np.zeros(len(word_ids))]
        headings = document_starts(starts, word_ids, vocabulary.index.get("="))
        self.blocks: TextBlocks = cut_into_blocks(starts, headings, np.stack(means))

    def estimates(self, chosen: BoolArray) -> dict[str, Estimate]:
        """Return the mean loss of every model on the chosen words; empty if there are none."""
        if not chosen.any():
            return {}
        indices = self.blocks.block_of_word[chosen]
        num_blocks = len(self.blocks)
        counts = np.bincount(indices, minlength=num_blocks).astype(np.float64)
        return {
            label: mean_of(
                np.array(
                    [np.bincount(indices, nll[chosen], num_blocks) for nll in by_seed], np.float64
                ),
                counts,
                self._runs.get(label, ()),
            )
            for label, by_seed in self._nll.items()
        }

    def loss_by_bin(self, deciding_words: IntArray) -> tuple[FrequencyBin, ...]:
        """Return the mean loss of every model in every bin that is not empty.

        `deciding_words` has, for each word, the id whose frequency decides its bin: its own or that
        of the previous word.
        """
        indices = bin_indices(deciding_words, self._counts)
        types = np.unique(deciding_words)
        bins = []
        for i in np.unique(indices):
            is_inside = indices == i
            types_inside = types[bin_indices(types, self._counts) == i]
            estimates = self.estimates(is_inside)
            differences = {
                label: estimate - estimates[self._reference]
                for label, estimate in estimates.items()
                if label != self._reference
            }
            bins.append(
                FrequencyBin(
                    name=BIN_NAMES[i],
                    types=len(types_inside),
                    train_tokens=int(self._counts[types_inside].sum()) if i >= UNSEEN else None,
                    tokens=int(is_inside.sum()),
                    loss={label: estimate.value for label, estimate in estimates.items()},
                    interval=_ends({k: e.loss_interval for k, e in estimates.items()}),
                    difference=_ends({k: e.interval for k, e in differences.items()}),
                )
            )
        return tuple(bins)


def _ends(intervals: Mapping[str, Interval | None]) -> dict[str, Ends]:
    return {label: (i.low, i.high) for label, i in intervals.items() if i is not None}
