"""The words on which a model gains or loses most against another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zipflm.analysis.frequency_bins import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class WordDifference:
    """One word's mean loss under two models."""

    word_id: int
    train_count: int
    tokens: int
    """Occurrences in the scored text."""
    loss: float
    reference_loss: float

    @property
    def difference(self) -> float:
        """Nats per occurrence; below zero where the model beats the reference."""
        return self.loss - self.reference_loss


@dataclass(frozen=True, kw_only=True)
class WordLists:
    """Words a model wins and loses, the largest difference first."""

    wins: tuple[WordDifference, ...]
    losses: tuple[WordDifference, ...]


def word_lists(
    word_ids: IntArray,
    train_counts: IntArray,
    nll: FloatArray,
    reference: FloatArray,
    *,
    size: int = 10,
    min_tokens: int = 5,
    first_word: int = 4,
) -> WordLists:
    """The `size` words with the largest mean gain, and those with the largest mean loss.

    Words with fewer than `min_tokens` occurrences are passed over: one lucky guess is no finding.
    So are the ids below `first_word`, the specials, which have no training count.
    Ties go to the word that occurs more often, then to the lower id, so that the lists are the
    same on every machine.
    """
    tokens = np.bincount(word_ids, minlength=len(train_counts))
    ours = np.bincount(word_ids, weights=nll, minlength=len(train_counts))
    theirs = np.bincount(word_ids, weights=reference, minlength=len(train_counts))
    candidates = np.flatnonzero(tokens >= max(1, min_tokens))
    candidates = candidates[candidates >= first_word]
    rows = [
        WordDifference(
            word_id=int(i),
            train_count=int(train_counts[i]),
            tokens=int(tokens[i]),
            loss=float(ours[i] / tokens[i]),
            reference_loss=float(theirs[i] / tokens[i]),
        )
        for i in candidates
    ]
    rising = sorted(rows, key=lambda row: (row.difference, -row.tokens, row.word_id))
    falling = sorted(rows, key=lambda row: (-row.difference, -row.tokens, row.word_id))
    return WordLists(
        wins=tuple(row for row in rising[:size] if row.difference < 0),
        losses=tuple(row for row in falling[:size] if row.difference > 0),
    )
