"""Find words on which a model is significantly better or worse than another.

For every word that occurs often enough, the mean difference in loss is tested with Student's t over
blocks of the text. The Benjamini-Hochberg procedure limits the false discovery rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zipflm.data.vocabulary import SPECIALS
from zipflm.studies.bins import FloatArray, IntArray
from zipflm.studies.statistics import two_sided_p

MIN_TOKENS = 10
"""Minimum number of occurrences of a tested word."""
MIN_BLOCKS = 5
"""Minimum number of blocks in which a tested word occurs."""
FALSE_DISCOVERY_RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class WordDifference:
    """Mean loss of a word under two models."""

    word_id: int
    train_count: int
    tokens: int
    """Number of occurrences in the scored text."""
    loss: float
    reference_loss: float
    p: float
    """p-value of the difference."""

    @property
    def difference(self) -> float:
        """Nats per occurrence; negative if the model is better than the reference."""
        return self.loss - self.reference_loss


@dataclass(frozen=True, kw_only=True)
class WordLists:
    """Words on which a model is better (wins) and worse (losses), largest difference first."""

    wins: tuple[WordDifference, ...]
    losses: tuple[WordDifference, ...]
    tested: int
    """Number of tested words."""
    significant: int
    """Number of significant differences. The lists contain the largest ones."""


def word_lists(
    word_ids: IntArray,
    train_counts: IntArray,
    nll: FloatArray,
    reference: FloatArray,
    block_of_word: IntArray,
    *,
    size: int = 10,
) -> WordLists:
    """Return the words with the largest significant gains and losses, up to `size` of each.

    Special tokens are left out. Ties are broken by frequency, then by id.
    """
    tokens = np.bincount(word_ids, minlength=len(train_counts))
    ours = np.bincount(word_ids, weights=nll, minlength=len(train_counts))
    theirs = np.bincount(word_ids, weights=reference, minlength=len(train_counts))
    p = _p_values(word_ids, nll - reference, block_of_word, len(train_counts))
    p[: len(SPECIALS)] = np.nan
    is_tested = np.isfinite(p)
    rows = [
        WordDifference(
            word_id=int(i),
            train_count=int(train_counts[i]),
            tokens=int(tokens[i]),
            loss=float(ours[i] / tokens[i]),
            reference_loss=float(theirs[i] / tokens[i]),
            p=float(p[i]),
        )
        for i in np.flatnonzero(is_tested)[discoveries(p[is_tested])]
    ]
    best_first = sorted(rows, key=lambda row: (row.difference, -row.tokens, row.word_id))
    worst_first = sorted(rows, key=lambda row: (-row.difference, -row.tokens, row.word_id))
    return WordLists(
        wins=tuple(row for row in best_first[:size] if row.difference < 0),
        losses=tuple(row for row in worst_first[:size] if row.difference > 0),
        tested=int(is_tested.sum()),
        significant=len(rows),
    )


def discoveries(p: FloatArray) -> np.ndarray:
    """Return a mask of the tests that are significant at `FALSE_DISCOVERY_RATE`.

    The procedure is that of Benjamini and Hochberg (1995).

    >>> discoveries(np.array([0.001, 0.8, 0.02, 0.045])).tolist()
    [True, False, True, False]
    """
    ascending = np.sort(p)
    is_below = ascending <= FALSE_DISCOVERY_RATE * np.arange(1, len(p) + 1) / max(1, len(p))
    limit = ascending[is_below].max(initial=-1.0)
    return np.asarray(p <= limit)


def _p_values(
    word_ids: IntArray, differences: FloatArray, block_of_word: IntArray, num_types: int
) -> FloatArray:
    """Return the p-value of every word of the vocabulary; NaN for words that are too rare."""
    num_blocks = int(block_of_word.max(initial=0)) + 1
    cell = word_ids.astype(np.int64) * num_blocks + block_of_word
    pairs, inverse = np.unique(cell, return_inverse=True)
    words = pairs // num_blocks
    counts = np.bincount(inverse).astype(np.float64)
    sums = np.bincount(inverse, weights=differences).astype(np.float64)

    def per_word(values: FloatArray) -> FloatArray:
        return np.bincount(words, values, minlength=num_types).astype(np.float64)

    total = per_word(counts)
    blocks = np.bincount(words, minlength=num_types)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = per_word(sums) / total
        # Variance of a ratio of sums, from the residuals of the blocks.
        squares = per_word((sums - counts * mean[words]) ** 2)
        error = np.sqrt(squares * blocks / (blocks - 1)) / total
        t = mean / error
    p = np.full(num_types, np.nan)
    is_tested = (total >= MIN_TOKENS) & (blocks >= MIN_BLOCKS)
    t[is_tested & (error == 0)] = 0.0  # equal differences in all blocks: not significant
    for count in np.unique(blocks[is_tested]):
        chosen = is_tested & (blocks == count)
        p[chosen] = two_sided_p(t[chosen], int(count) - 1)
    return p
