"""Word errors: how many words must be replaced, deleted or inserted to turn one text into another.

rapidfuzz counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Edits:
    """What separates a hypothesis from its reference, in the fewest steps."""

    substitutions: int = 0
    deletions: int = 0
    """Words of the reference that the hypothesis lacks."""
    insertions: int = 0
    """Words of the hypothesis that the reference lacks."""

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def levenshtein() -> ModuleType:
    """rapidfuzz's edit distances; ValueError if it is not installed."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError:
        raise ValueError("--tune: needs rapidfuzz: pip install rapidfuzz") from None
    return Levenshtein


def word_errors(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> list[int]:
    """The edit distance of every hypothesis to the reference, in words.

    >>> word_errors("a b c".split(), ["a b c".split(), "b c d".split(), []])
    [0, 2, 3]
    """
    distance = levenshtein().distance
    return [distance(reference, words) for words in hypotheses]


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    """Which errors the distance is made of: of all shortest ways, one with most substitutions.

    >>> edits("a b c".split(), "b d".split())
    Edits(substitutions=1, deletions=1, insertions=0)
    """
    # An insertion or a deletion costs a trifle more than a substitution, so little that all of them
    # together cost less than one error.
    error = len(reference) + len(hypothesis) + 1
    weights = (error + 1, error + 1, error)
    errors, gaps = divmod(levenshtein().distance(reference, hypothesis, weights=weights), error)
    deletions = (gaps + len(reference) - len(hypothesis)) // 2
    return Edits(errors - gaps, deletions, gaps - deletions)
