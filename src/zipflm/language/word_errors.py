"""Word errors: how many words must be replaced, deleted or inserted to turn one text into another.

Distances are computed bit-parallel: one integer holds a whole column of the textbook's table, a bit
per word of the reference (Myers 1999, in Hyyro's form for the distance of whole texts). Hypotheses
of one reference share the work of their common beginnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


_Column = tuple[int, int, int]
"""A column of the table: at which places of the reference the value is one more than at the place
before, at which it is one less, and the value at the last place, which is the distance."""


def word_errors(reference: Sequence[str], hypotheses: Sequence[list[str]]) -> list[int]:
    """The edit distance of every hypothesis to the reference, in words.

    >>> word_errors("a b c".split(), ["a b c".split(), "b c d".split(), []])
    [0, 2, 3]
    """
    matches: dict[str, int] = {}
    for place, word in enumerate(reference):
        matches[word] = matches.get(word, 0) | 1 << place
    size = len(reference)
    columns: list[_Column] = [((1 << size) - 1, 0, size)]
    before: Sequence[str] = ()
    distances = [0] * len(hypotheses)
    # In this order the beginnings that hypotheses share follow each other.
    for index in sorted(range(len(hypotheses)), key=hypotheses.__getitem__):
        words = hypotheses[index]
        del columns[_common(before, words) + 1 :]
        for word in words[len(columns) - 1 :]:
            columns.append(_next(columns[-1], matches.get(word, 0), size))
        distances[index] = columns[-1][2]
        before = words
    return distances


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Words that two texts have in common at their beginning."""
    number = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        number += 1
    return number


def _next(column: _Column, match: int, size: int) -> _Column:
    """The column behind one more word, which is at the places `match` of the reference."""
    more, less, last = column
    if not size:
        return 0, 0, last + 1
    every = (1 << size) - 1
    # Where going right along the diagonal costs nothing, and what going right adds or takes away.
    diagonal = ((match & more) + more ^ more) | match
    right_more = less | every & ~(diagonal | more)
    right_less = more & diagonal
    last += (right_more >> size - 1) - (right_less >> size - 1)
    right_more = (right_more << 1 | 1) & every
    right_less = right_less << 1 & every
    vertical = match | less
    return right_less | every & ~(vertical | right_more), right_more & vertical, last


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    """Which errors the distance is made of: of all shortest ways, one with most substitutions.

    >>> edits("a b c".split(), "b d".split())
    Edits(substitutions=1, deletions=1, insertions=0)
    """
    # Per cell the errors and, of these, deletions and insertions, compared in this order.
    row = [(place, place, 0) for place in range(len(reference) + 1)]
    for number, word in enumerate(hypothesis, start=1):
        above, row = row, [(number, 0, number)]
        for place, expected in enumerate(reference):
            errors, deletions, insertions = above[place]
            best = (errors + (word != expected), deletions, insertions)
            errors, deletions, insertions = above[place + 1]
            best = min(best, (errors + 1, deletions, insertions + 1))
            errors, deletions, insertions = row[-1]
            row.append(min(best, (errors + 1, deletions + 1, insertions)))
    errors, deletions, insertions = row[-1]
    return Edits(errors - deletions - insertions, deletions, insertions)
