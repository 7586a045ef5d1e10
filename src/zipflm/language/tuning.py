"""Choosing weights on a development set: those with the fewest word errors on a grid.

The grid is always the same, so that everybody gets the same weights from the same lists. It starts
with 0, 0.01, 0.02, 0.05, 0.1 and on to 100 (for the number of words: 0.1 to 10, with either sign),
every value with every other. While the best value is at an end, the grid grows by a factor of ten,
to 10,000 at most. Then, twice, a finer one takes five steps from the best values to their
neighbours on each side. Of weights with equally many errors the smallest are taken.

rapidfuzz counts the errors of every hypothesis once; a point of the grid costs a weighted sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.language.nbest import WORDS, Entry, NBest, read_references
from zipflm.language.rescoring import (
    HypothesisScorer,
    OpenLists,
    ScoredEntry,
    open_lists,
    scored,
    written_weights,
)
from zipflm.messages import unquoted

MOST_NAMES = 3
"""Weights that can be chosen together; the grid has over ten values for each."""

_REFINEMENTS, _STEPS = 2, 5
_LARGEST = 1e4
_DIGITS = 4
_SCORES = (0.0, *(float(f"{m}e{e}") for e in (-2, -1, 0, 1) for m in (1, 2, 5)), 100.0)
_PENALTIES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


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
        raise ValueError("--reference: needs rapidfuzz: pip install rapidfuzz") from None
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


class DevelopmentSet:
    """Scored lists and what was really said, as arrays over all hypotheses."""

    def __init__(
        self,
        utterances: Sequence[list[ScoredEntry]],
        references: Mapping[str, list[str]],
        names: Sequence[str],
        lm: str,
    ) -> None:
        """`names` are those of the scores that may count, `references` has all utterances.

        Raises ValueError if no word was said."""
        self.utterances = utterances
        self.references: list[list[str]] = [
            references[each[0].entry.utterance] for each in utterances
        ]
        self.left_over: int = len(references) - len(utterances)
        """References without a hypothesis."""
        self.reference_words: int = sum(map(len, self.references))
        if not self.reference_words:
            raise ValueError("--reference: the references of these utterances hold no words")
        lengths = [len(utterance) for utterance in utterances]
        self._utterance_of = np.repeat(np.arange(len(lengths)), lengths)
        self._starts: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64) - lengths
        flat = [one for utterance in utterances for one in utterance]
        self._columns = {
            name: np.array([one.value(name, lm) for one in flat], dtype=np.float64)
            for name in names
        }
        counted = (
            word_errors(reference, [one.entry.words for one in utterance])
            for reference, utterance in zip(self.references, utterances, strict=True)
        )
        self._errors = np.array([x for each in counted for x in each], dtype=np.int64)

    def chosen(self, weights: Mapping[str, float]) -> NDArray[np.int64]:
        """Of every utterance the hypothesis with the largest total, the first of equal ones; as
        places among all hypotheses."""
        totals = np.zeros(len(self._errors))
        for name, weight in weights.items():
            if weight:
                totals += weight * self._columns[name]
        return self._largest(totals)

    def _largest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The first place of every utterance that has its largest value."""
        largest = np.maximum.reduceat(values, self._starts)[self._utterance_of]
        places = np.flatnonzero(values == largest)
        return places[np.diff(self._utterance_of[places], prepend=-1) > 0]

    def errors(self, weights: Mapping[str, float]) -> int:
        """Word errors of what these weights choose."""
        return int(self._errors[self.chosen(weights)].sum())

    def first(self) -> NDArray[np.int64]:
        """What the lists themselves put first."""
        return self._starts

    def oracle(self) -> NDArray[np.int64]:
        """Of every utterance the hypothesis with the fewest errors."""
        return self._largest(-self._errors)

    def edits(self, places: NDArray[np.int64]) -> Edits:
        """The errors of one hypothesis per utterance, by kind."""
        total = Edits()
        for utterance, start, place in zip(
            range(len(places)), self._starts.tolist(), places.tolist(), strict=True
        ):
            words = self.utterances[utterance][place - start].entry.words
            total += edits(self.references[utterance], words)
        return total


@dataclass(frozen=True)
class TuningRow:
    """A line of the report."""

    label: str
    edits: Edits
    weights: str = ""


@dataclass(frozen=True)
class Tuning:
    """The weights that were chosen, and what they do."""

    weights: Mapping[str, float]
    """Of every score."""
    option: str
    """What to give as `--weights` for the same: those that were given or chosen."""
    rows: tuple[TuningRow, ...]
    reference_words: int
    utterances: int
    left_over: int
    points: int
    """Combinations of weights that were tried."""
    at_end: tuple[str, ...] = ()
    """Weights at an end of the grid, `words=10000`: larger ones may be better."""

    def as_text(self) -> str:
        """A table, and the option that stands for the weights."""
        lines = [f"{'':18} {'WER':>7} {'errors':>8} {'sub':>7} {'del':>7} {'ins':>7}  weights"]
        for row in self.rows:
            kinds = row.edits
            rate = 100 * kinds.errors / self.reference_words
            lines.append(
                f"{row.label:18} {rate:6.2f}% {kinds.errors:8,} {kinds.substitutions:7,} "
                f"{kinds.deletions:7,} {kinds.insertions:7,}  {row.weights}".rstrip()
            )
        said = f"{self.reference_words:,} words of {self.utterances:,} utterances"
        if self.left_over:
            said += f" ({self.left_over:,} references have no hypothesis and do not count)"
        lines.append(f"{said}; {self.points:,} combinations of weights tried")
        if self.at_end:
            lines.append(
                f"warning: {', '.join(self.at_end)}: at the end of the grid; give the other scores "
                "smaller weights and tune again"
            )
        lines.append(f"--weights {self.option}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Development:
    """A list in memory with what was really said, and the weights to choose."""

    lists: OpenLists
    utterances: Sequence[list[Entry]]
    references: Mapping[str, list[str]]
    names: Sequence[str]
    given: Sequence[str]
    """Names of weights that were asked for."""


def read_development(
    nbest: NBest,
    given: Mapping[str, float],
    references: str,
    names: Sequence[str] | None = None,
    *,
    lm: str = "lm",
) -> Development:
    """Read a list and its file of references, to choose the weights of `names` on them.

    Without names it is the weights of the language model and of the words, if they are not given.
    Raises ValueError if an utterance has no reference.
    """
    wanted = [name for name in (lm, WORDS) if name not in given] if names is None else names
    check_names(wanted, given)
    levenshtein()  # is missed before the model is loaded
    said = read_references(references, nbest.format_name, nbest.encoding)
    # Any weight but 0, so that their scores are required to be there.
    lists = open_lists(nbest, dict(given) | dict.fromkeys(wanted, 1.0), lm)
    utterances = list(lists.utterances)
    for entries in utterances:
        if entries[0].utterance not in said:
            raise ValueError(
                f"--reference {references}: no reference for utterance "
                f"{unquoted(entries[0].utterance)}; a line has an id and the words, or for lists "
                "of Moses's, which count from 0, the words alone"
            )
    return Development(lists, utterances, said, wanted, tuple(given))


def tune_on(
    development: Development, scorer: HypothesisScorer
) -> tuple[Tuning, list[list[ScoredEntry]]]:
    """The best weights, and the lists with the model's scores."""
    lists, names = development.lists, development.names
    start, lm = lists.weights, lists.lm
    number = sum(map(len, development.utterances))
    utterances = list(scored(development.utterances, scorer, number))
    needed = [name for name, weight in start.items() if weight]
    prepared = DevelopmentSet(utterances, development.references, needed, lm)
    weights, points, at_end = _search(prepared, start, names)

    def option(weights: Mapping[str, float]) -> str:
        """Those that were given or chosen."""
        told = {*development.given, *names}
        return written_weights(
            {n: x for n, x in weights.items() if n in told or (n == lm and not x)}
        )

    def row(label: str, weights: Mapping[str, float], told: str = "") -> TuningRow:
        return TuningRow(label, prepared.edits(prepared.chosen(weights)), told)

    rows = [TuningRow("first in the lists", prepared.edits(prepared.first()))]
    without = dict(start) | {lm: 0.0} | ({WORDS: 0.0} if WORDS in names else {})
    if any(without.values()):
        rows.append(row("without the model", without))
    # What the other weights gain by themselves is not the model's gain.
    if others := [name for name in names if name != lm]:
        alone, more, ends = _search(prepared, without, others)
        points, at_end = points + more, [*at_end, *ends]
        rows.append(row("tuned without it", alone, option(alone)))
    rows.append(row("tuned", weights, option(weights)))
    rows.append(TuningRow("oracle", prepared.edits(prepared.oracle())))
    found = Tuning(
        weights=weights,
        option=option(weights),
        rows=tuple(rows),
        reference_words=prepared.reference_words,
        utterances=len(utterances),
        left_over=prepared.left_over,
        points=points,
        at_end=tuple(dict.fromkeys(at_end)),
    )
    return found, utterances


def _search(
    development: DevelopmentSet, start: Mapping[str, float], names: Sequence[str]
) -> tuple[dict[str, float], int, list[str]]:
    """All weights with the best ones of `names`, how many combinations were tried, and which of the
    best are at an end of the grid."""
    grids = {name: _coarse(name) for name in names}
    tried: dict[tuple[float, ...], int] = {}

    def best() -> dict[str, float]:
        for point in itertools.product(*grids.values()):
            if point not in tried:
                weights = dict(start) | dict(zip(names, point, strict=True))
                tried[point] = development.errors(weights)
        # All that were tried before are as good: a refinement cannot lose what was found.
        chosen = min(tried, key=lambda point: (tried[point], *_size(point)))
        return dict(zip(names, chosen, strict=True))

    def wider(name: str) -> list[float]:
        """The grid up to ten times as far, where its end is as good as anything in it."""
        least = tried[tuple(found.values())]
        more = {
            _rounded(end * factor)
            for end in (grids[name][0], grids[name][-1])
            if 0 < abs(end) < _LARGEST and tried[tuple((found | {name: end}).values())] == least
            for factor in (2, 5, 10)
        }
        return sorted({*grids[name], *more}) if more else []

    found = best()
    while more := {name: grid for name in names if (grid := wider(name))}:
        grids |= more
        found = best()
    ends = {name: (grid[0], grid[-1]) for name, grid in grids.items()}
    for _ in range(_REFINEMENTS):
        grids = {name: _finer(grids[name], found[name]) for name in names}
        found = best()
    at_end = {name: x for name, x in found.items() if x and x in ends[name]}
    return dict(start) | found, len(tried), [written_weights({n: x}) for n, x in at_end.items()]


def check_names(names: Sequence[str], given: Mapping[str, float]) -> None:
    """ValueError for what cannot be tuned."""
    if not names:
        raise ValueError("--reference: all weights are given, so that there is nothing to choose")
    if not len(names) <= MOST_NAMES or len(set(names)) != len(names):
        raise ValueError(f"--tune {','.join(names)}: give one to {MOST_NAMES} different names")
    for name in names:
        if name in given:
            raise ValueError(
                f"{unquoted(name)} has a weight in --weights and is to be tuned; leave out one"
            )


def _coarse(name: str) -> list[float]:
    if name == WORDS:
        return sorted([0.0, *_PENALTIES, *(-penalty for penalty in _PENALTIES)])
    return list(_SCORES)


def _finer(grid: list[float], best: float) -> list[float]:
    """Steps from the best value to its neighbours."""
    place = grid.index(best)
    values = {best}
    for neighbour in grid[max(place - 1, 0) : place + 2]:
        for step in range(1, _STEPS + 1):
            values.add(_rounded(best + (neighbour - best) * step / _STEPS))
    return sorted(values)


def _rounded(value: float) -> float:
    # So that the weights to paste are exactly those that were measured.
    return float(f"{value:.{_DIGITS}g}") + 0.0


def _size(point: tuple[float, ...]) -> tuple[object, ...]:
    sizes = tuple(abs(value) for value in point)
    return (sum(sizes), sizes, point)
