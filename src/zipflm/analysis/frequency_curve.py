"""Loss against how often a word occurs in the training text, as a smooth curve with its interval.

Bins hide what happens inside them: one of 1,001 to 10,000 occurrences holds words whose losses
differ by three nats. A local linear regression on the logarithm of the count shows it: at every
point of the axis a straight line is fitted to the words nearby, and its height there is the curve.
Weighted sums per block of the text are all that it takes, so its intervals cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zipflm.analysis.estimates import Estimate, Interval, estimate
from zipflm.analysis.frequency_bins import BoolArray, FloatArray, IntArray
from zipflm.analysis.text_blocks import TextBlocks

_POINTS = 40
_WIDTH = 0.2
"""Of the Gaussian that weighs the words nearby, in powers of ten."""
_FEWEST_WORDS = 50
"""Weighed words around a point; with fewer the curve is not drawn there."""


@dataclass(frozen=True, kw_only=True)
class CurveAt:
    """All models at one point of the axis."""

    count: float
    """Occurrences in the training text."""
    loss: Mapping[str, Interval]
    """In nats."""
    difference: Mapping[str, Interval]
    """To the reference."""


def frequency_curve(
    word_ids: IntArray,
    train_counts: IntArray,
    nll: Mapping[str, FloatArray],
    blocks: TextBlocks,
    *,
    reference: str,
    first_word: int = 4,
) -> tuple[CurveAt, ...]:
    """The curve of every model; `nll` has [seeds, words] for each. Specials have no count of their
    own and take no part, nor do words that the training text does not have."""
    counts = train_counts[word_ids]
    chosen = (word_ids >= first_word) & (counts > 0)
    if not chosen.any() or len(blocks) < 2:
        return ()
    levels, level_of = np.unique(counts[chosen], return_inverse=True)
    x = np.log10(levels.astype(np.float64))
    place = blocks.of_word[chosen] * len(levels) + level_of
    shape = len(blocks), len(levels)

    def by_block(weights: FloatArray | None = None) -> FloatArray:
        flat = np.bincount(place, weights, minlength=shape[0] * shape[1]).astype(np.float64)
        return flat.reshape(shape)

    grid = np.linspace(x[0], x[-1], _POINTS) if len(levels) > 1 else x
    offset = x[:, None] - grid
    kernel = np.exp(-0.5 * (offset / _WIDTH) ** 2)
    # Moments of the words around every point, per block: [3, blocks, points].
    words = by_block()
    moments = np.stack([words @ (kernel * offset**power) for power in range(3)])
    found: dict[str, list[Estimate]] = {}
    for label, losses in nll.items():
        # [seeds, 2, blocks, points]
        sums = np.stack(
            [
                [by_block(own[chosen]) @ (kernel * offset**power) for power in range(2)]
                for own in losses
            ]
        )
        found[label] = _heights(moments, sums)
    return tuple(
        at
        for i, place_on_axis in enumerate(grid)
        if moments[0, :, i].sum() >= _FEWEST_WORDS
        and (at := _at(10**place_on_axis, {k: v[i] for k, v in found.items()}, reference))
    )


def _heights(moments: FloatArray, sums: FloatArray) -> list[Estimate]:
    """The fitted height at every point."""
    by_seed = np.stack([_line(moments.sum(axis=1), seed.sum(axis=1))[0] for seed in sums])
    zeroth, first, second = totals = moments.sum(axis=1)
    mean = sums.mean(axis=0)
    height, slope = _line(totals, mean.sum(axis=1))
    # Every block's deviation from the line, as far as it moves the height.
    level = mean[0] - height * moments[0] - slope * moments[1]
    tilt = mean[1] - height * moments[1] - slope * moments[2]
    with np.errstate(invalid="ignore", divide="ignore"):
        residuals = np.where(
            _is_line(totals),
            (second * level - first * tilt) / (zeroth * second - first**2),
            level / zeroth,
        )
    blocks = np.count_nonzero(moments[0] > 1e-3, axis=0)
    return [
        estimate(by_seed[:, i], residuals[:, i], int(blocks[i])) for i in range(moments.shape[-1])
    ]


def _line(moments: FloatArray, sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Height, at the point itself, and slope of the straight line of least squares; a plain mean
    where all words have the same count."""
    zeroth, first, second = moments
    spread = zeroth * second - first**2
    with np.errstate(invalid="ignore", divide="ignore"):
        height = (second * sums[0] - first * sums[1]) / spread
        slope = (zeroth * sums[1] - first * sums[0]) / spread
        is_line = _is_line(moments)
        return np.where(is_line, height, sums[0] / zeroth), np.where(is_line, slope, 0.0)


def _is_line(moments: FloatArray) -> BoolArray:
    zeroth, first, second = moments
    return np.asarray(zeroth * second - first**2 > 1e-6 * zeroth**2)


def _at(count: float, found: Mapping[str, Estimate], reference: str) -> CurveAt | None:
    loss = {label: one.interval for label, one in found.items()}
    difference = {
        label: (one - found[reference]).interval
        for label, one in found.items()
        if label != reference
    }
    if not any(loss.values()):
        return None
    return CurveAt(
        count=float(count),
        loss={label: i for label, i in loss.items() if i},
        difference={label: i for label, i in difference.items() if i},
    )
