"""Tuning of rescoring weights: a deterministic grid search for the fewest word errors.

The grid has 0, 0.01, 0.02, 0.05, 0.1, ... 100 (for the number of words: 0 and 0.1 to 10 with both
signs). While the best value is at an end, the grid grows by a factor of ten, up to 10,000. Then two
finer grids take five steps from the best values to their neighbors. Ties go to the smallest
weights.
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
    format_weights,
    open_lists,
    scored,
)
from zipflm.messages import unquoted

MAX_NAMES = 3
"""Maximum number of weights that can be tuned together."""

_REFINEMENTS, _STEPS = 2, 5
_MAX_WEIGHT = 1e4
_DIGITS = 4
_SCORES = (0.0, *(float(f"{m}e{e}") for e in (-2, -1, 0, 1) for m in (1, 2, 5)), 100.0)
_PENALTIES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Edits:
    """The fewest edits from a reference to a hypothesis, in words."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

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
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError:
        raise ValueError("--reference: needs rapidfuzz; pip install rapidfuzz") from None
    return Levenshtein


def word_errors(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> list[int]:
    """Return the edit distance from the reference to every hypothesis, in words.

    >>> word_errors("a b c".split(), ["a b c".split(), "b c d".split(), []])
    [0, 2, 3]
    """
    distance = levenshtein().distance
    return [distance(reference, words) for words in hypotheses]


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    """Count the edits of each kind. Among minimal edits, prefer those with the most substitutions.

    >>> edits("a b c".split(), "b d".split())
    Edits(substitutions=1, deletions=1, insertions=0)
    """
    # Insertions and deletions cost slightly more than substitutions, but the extra cost of all of
    # them is less than one error.
    error = len(reference) + len(hypothesis) + 1
    weights = (error + 1, error + 1, error)
    errors, gaps = divmod(levenshtein().distance(reference, hypothesis, weights=weights), error)
    deletions = (gaps + len(reference) - len(hypothesis)) // 2
    return Edits(errors - gaps, deletions, gaps - deletions)


class DevelopmentSet:
    """Scored lists with their references, as arrays over all hypotheses."""

    def __init__(
        self,
        utterances: Sequence[list[ScoredEntry]],
        references: Mapping[str, list[str]],
        names: Sequence[str],
        lm: str,
    ) -> None:
        """`names` are the scores with a weight. `references` must have all utterances."""
        self.utterances = utterances
        self.references: list[list[str]] = [
            references[entries[0].entry.utterance] for entries in utterances
        ]
        self.left_over: int = len(references) - len(utterances)
        """Number of references without a hypothesis."""
        self.reference_words: int = sum(map(len, self.references))
        if not self.reference_words:
            raise ValueError("--reference: the references have no words; check the file")
        lengths = [len(utterance) for utterance in utterances]
        self._utterance_of = np.repeat(np.arange(len(lengths)), lengths)
        self._starts: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64) - lengths
        flat = [scored for utterance in utterances for scored in utterance]
        self._columns = {
            name: np.array([scored.value(name, lm) for scored in flat], dtype=np.float64)
            for name in names
        }
        errors = (
            word_errors(reference, [scored.entry.words for scored in utterance])
            for reference, utterance in zip(self.references, utterances, strict=True)
        )
        self._errors = np.array([*itertools.chain.from_iterable(errors)], dtype=np.int64)

    def chosen(self, weights: Mapping[str, float]) -> NDArray[np.int64]:
        """Return the index of the first hypothesis with the largest total, per utterance."""
        totals = np.zeros(len(self._errors))
        for name, weight in weights.items():
            if weight:
                totals += weight * self._columns[name]
        return self._largest(totals)

    def _largest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of the first largest value, per utterance."""
        largest = np.maximum.reduceat(values, self._starts)[self._utterance_of]
        indices = np.flatnonzero(values == largest)
        return indices[np.diff(self._utterance_of[indices], prepend=-1) > 0]

    def errors(self, weights: Mapping[str, float]) -> int:
        """Return the number of word errors with these weights."""
        return int(self._errors[self.chosen(weights)].sum())

    def first(self) -> NDArray[np.int64]:
        """Return the index of the first hypothesis, per utterance."""
        return self._starts

    def oracle(self) -> NDArray[np.int64]:
        """Return the index of the hypothesis with the fewest errors, per utterance."""
        return self._largest(-self._errors)

    def edits(self, indices: NDArray[np.int64]) -> Edits:
        """Sum the edits of one hypothesis per utterance."""
        total = Edits()
        for utterance, start, index in zip(
            range(len(indices)), self._starts.tolist(), indices.tolist(), strict=True
        ):
            words = self.utterances[utterance][index - start].entry.words
            total += edits(self.references[utterance], words)
        return total


@dataclass(frozen=True)
class TuningRow:
    """A row of the table."""

    label: str
    edits: Edits
    weights: str = ""


@dataclass(frozen=True)
class Tuning:
    """The best weights and their word errors."""

    weights: Mapping[str, float]
    """For every score."""
    option: str
    """Given and tuned weights, as a value for `--weights`."""
    rows: tuple[TuningRow, ...]
    reference_words: int
    utterances: int
    left_over: int
    points: int
    """Number of weight combinations tried."""
    at_end: tuple[str, ...] = ()
    """Weights at an end of the grid, e.g. `words=10000`: larger ones could be better."""

    def as_text(self) -> str:
        lines = [f"{'':18} {'WER':>7} {'errors':>8} {'sub':>7} {'del':>7} {'ins':>7}  weights"]
        for row in self.rows:
            kinds = row.edits
            rate = 100 * kinds.errors / self.reference_words
            lines.append(
                f"{row.label:18} {rate:6.2f}% {kinds.errors:8,} {kinds.substitutions:7,} "
                f"{kinds.deletions:7,} {kinds.insertions:7,}  {row.weights}".rstrip()
            )
        summary = f"{self.reference_words:,} words in {self.utterances:,} utterances"
        if self.left_over:
            summary += f" ({self.left_over:,} references without hypotheses are ignored)"
        lines.append(f"{summary}; {self.points:,} combinations of weights tried")
        if self.at_end:
            lines.append(
                f"warning: {', '.join(self.at_end)}: at the end of the grid; set smaller weights "
                "for the other scores and tune again"
            )
        lines.append(f"--weights {self.option}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Development:
    """Lists in memory with references, and the weights to tune."""

    lists: OpenLists
    utterances: Sequence[list[Entry]]
    references: Mapping[str, list[str]]
    names: Sequence[str]
    given: Sequence[str]
    """Names of the given weights."""


def read_development(
    nbest: NBest,
    given: Mapping[str, float],
    references: str,
    names: Sequence[str] | None = None,
    *,
    lm: str = "lm",
) -> Development:
    """Read lists and references to tune the weights of `names` on.

    By default, the weights of the language model and of the words are tuned, if they are not given.
    Raises ValueError if an utterance has no reference.
    """
    wanted = [name for name in (lm, WORDS) if name not in given] if names is None else names
    check_names(wanted, given)
    levenshtein()  # fail before the model is loaded
    transcripts = read_references(references, nbest.format_name, nbest.encoding)
    # A weight other than 0 requires their scores in every entry.
    lists = open_lists(nbest, dict(given) | dict.fromkeys(wanted, 1.0), lm)
    utterances = list(lists.utterances)
    for entries in utterances:
        if entries[0].utterance not in transcripts:
            raise ValueError(
                f"--reference {references}: no reference for utterance "
                f"{unquoted(entries[0].utterance)}; write an id and words on each line, or for "
                "moses only the words, in the order of the ids from 0"
            )
    return Development(lists, utterances, transcripts, wanted, tuple(given))


def tune_on(
    development: Development, scorer: HypothesisScorer
) -> tuple[Tuning, list[list[ScoredEntry]]]:
    """Return the best weights, and the lists with the model's scores."""
    lists, names = development.lists, development.names
    start, lm = lists.weights, lists.lm
    num_hypotheses = sum(map(len, development.utterances))
    utterances = list(scored(development.utterances, scorer, num_hypotheses))
    needed = [name for name, weight in start.items() if weight]
    prepared = DevelopmentSet(utterances, development.references, needed, lm)
    weights, points, at_end = _search(prepared, start, names)

    def option(weights: Mapping[str, float]) -> str:
        listed = {*development.given, *names}
        return format_weights(
            {n: x for n, x in weights.items() if n in listed or (n == lm and not x)}
        )

    def row(label: str, weights: Mapping[str, float], shown: str = "") -> TuningRow:
        return TuningRow(label, prepared.edits(prepared.chosen(weights)), shown)

    rows = [TuningRow("first in the lists", prepared.edits(prepared.first()))]
    without = dict(start) | {lm: 0.0} | ({WORDS: 0.0} if WORDS in names else {})
    if any(without.values()):
        rows.append(row("without the model", without))
    # Tuning the other weights without the model shows how much of the gain is due to the model.
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
    """Search for the best weights of `names`.

    Returns all weights, the number of combinations tried, and the best weights that are at an end
    of the grid.
    """
    grids = {name: _coarse(name) for name in names}
    tried: dict[tuple[float, ...], int] = {}

    def best() -> dict[str, float]:
        for point in itertools.product(*grids.values()):
            if point not in tried:
                weights = dict(start) | dict(zip(names, point, strict=True))
                tried[point] = development.errors(weights)
        # Includes earlier grids, so a refinement never gets worse.
        chosen = min(tried, key=lambda point: (tried[point], *_size(point)))
        return dict(zip(names, chosen, strict=True))

    def wider(name: str) -> list[float]:
        """Return a grid that extends ten times as far if its end is among the best values, or an
        empty list."""
        fewest = tried[tuple(found.values())]
        more = {
            _rounded(end * factor)
            for end in (grids[name][0], grids[name][-1])
            if 0 < abs(end) < _MAX_WEIGHT and tried[tuple((found | {name: end}).values())] == fewest
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
    return dict(start) | found, len(tried), [format_weights({n: x}) for n, x in at_end.items()]


def check_names(names: Sequence[str], given: Mapping[str, float]) -> None:
    """Raise ValueError for weights that cannot be tuned."""
    if not names:
        raise ValueError("--reference: no weights left to tune; leave out some of --weights")
    if len(names) > MAX_NAMES or len(set(names)) != len(names):
        raise ValueError(f"--tune {','.join(names)}: give 1 to {MAX_NAMES} different names")
    for name in names:
        if name in given:
            raise ValueError(
                f"--tune {unquoted(name)}: already has a weight in --weights; leave out one"
            )


def _coarse(name: str) -> list[float]:
    if name == WORDS:
        return sorted([0.0, *_PENALTIES, *(-penalty for penalty in _PENALTIES)])
    return list(_SCORES)


def _finer(grid: list[float], best: float) -> list[float]:
    index = grid.index(best)
    values = {best}
    for neighbor in grid[max(index - 1, 0) : index + 2]:
        for step in range(1, _STEPS + 1):
            values.add(_rounded(best + (neighbor - best) * step / _STEPS))
    return sorted(values)


def _rounded(value: float) -> float:
    # Rounded, so that the printed weights are exactly those that were tried.
    return float(f"{value:.{_DIGITS}g}") + 0.0


def _size(point: tuple[float, ...]) -> tuple[object, ...]:
    sizes = tuple(abs(value) for value in point)
    return (sum(sizes), sizes, point)
