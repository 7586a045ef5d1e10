"""Weights of scores in n-best lists, e.g. `lm=0.7,words=-0.2`, and their tuning.

Tuning is a deterministic grid search for the fewest word errors. The first grid has 0, 0.01, 0.02,
0.05, 0.1, ... 10,000 for each weight; for the number of words, it has 0 and the values from 0.1 to
10,000 with both signs. Two finer grids take five steps from the best values to their neighbors on
the previous grid. Ties go to the weights with the smallest sum of absolute values.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.language.nbest import TOTAL, WORDS, Entry
from zipflm.messages import unquoted

MAX_NAMES = 3
"""Maximum number of weights that can be tuned together."""

_REFINEMENTS, _STEPS = 2, 5
_DIGITS = 4
"""Significant digits of weights on finer grids."""
_GRID = [float(f"{m}e{e}") for e in range(-2, 4) for m in (1, 2, 5)] + [1e4]
_PENALTIES = [penalty for penalty in _GRID if penalty >= 0.1]
_EDITS = ("replace", "delete", "insert")  # as rapidfuzz names them


def check_name(lm: str) -> None:
    """Raise ValueError if the model's score cannot have this name."""
    if lm in (WORDS, TOTAL, "id", "text") or not lm.isidentifier():
        raise ValueError(
            f"--name {unquoted(lm)}: must consist of letters, digits and _, not start with a "
            f"digit, and not be {WORDS}, {TOTAL}, id or text"
        )


def format_weights(weights: Mapping[str, float]) -> str:
    """Format weights as a value for `--weights`.

    >>> format_weights({"lm": 0.7, "words": -2.0})
    'lm=0.7,words=-2'
    """
    return ",".join(f"{name}={value:.12g}" for name, value in weights.items())


def complete_weights(given: Mapping[str, float], names: Iterable[str], lm: str) -> dict[str, float]:
    """Add default weights for the scores of a list, the model's score `lm` and the number of words.

    The model has weight 1 and the number of words 0. If the list has a total, the total has weight
    1 and the other scores of the list 0; otherwise all scores of the list have weight 1.
    Raises ValueError for unknown names, if the list already has a score `lm` or `words`, and if the
    total could already include a score in `given`.
    """
    names = list(names)
    if lm in names:
        raise ValueError(
            f"--name {unquoted(lm)}: the list already has a score with this name; choose another"
        )
    if WORDS in names:
        raise ValueError(f"the score name {WORDS} is reserved for the word count; rename it")
    known = [*names, lm, WORDS]
    for name in given:
        if name not in known:
            raise ValueError(
                f"--weights, --tune: no score {unquoted(name)}; choose from "
                f"{', '.join(map(unquoted, known))}"
            )
    parts = [name for name in given if name in names and name != TOTAL]
    if TOTAL in names and TOTAL not in given and parts:
        raise ValueError(
            f"--weights: the total of the list may already include {unquoted(parts[0])}; also set "
            f"{TOTAL}=0 to ignore the total, or {TOTAL}=1 to add to it"
        )
    defaults = {name: float(TOTAL not in names or name == TOTAL) for name in names}
    return defaults | {lm: 1.0, WORDS: 0.0} | dict(given)


def import_levenshtein() -> ModuleType:
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError:
        raise ValueError("--reference: needs rapidfuzz; pip install rapidfuzz") from None
    return Levenshtein


class DevelopmentSet:
    """Scored lists with their references, as arrays over all hypotheses."""

    def __init__(
        self,
        utterances: Sequence[Sequence[Entry]],
        references: Mapping[str, Sequence[str]],
        names: Iterable[str],
    ) -> None:
        """`names` are the scores with a non-zero weight. `references` must cover all utterances."""
        entries = [entry for entries in utterances for entry in entries]
        lengths = [len(entries) for entries in utterances]
        self.first: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64) - lengths
        """Index of the first hypothesis of each utterance."""
        self.num_words: int = sum(len(references[each[0].utterance]) for each in utterances)
        if not self.num_words:
            raise ValueError("--reference: the references have no words; check the file")
        self._utterance_of = np.repeat(np.arange(len(lengths)), lengths)
        self._columns = {
            name: np.array([entry.scores[name] for entry in entries]) for name in names
        }
        editops = import_levenshtein().editops
        edits = [
            Counter(edit.tag for edit in editops(references[entry.utterance], entry.words))
            for entry in entries
        ]
        self._edits = np.array([[counts[kind] for kind in _EDITS] for counts in edits])
        self._errors = self._edits.sum(1)

    def chosen(self, weights: Mapping[str, float]) -> NDArray[np.int64]:
        """Return the index of the hypothesis with the largest total, per utterance. Ties go to the
        first one."""
        totals = np.zeros(len(self._errors))
        for name, weight in weights.items():
            if weight:
                totals += weight * self._columns[name]
        return self._largest(totals)

    def oracle(self) -> NDArray[np.int64]:
        """Return the index of the hypothesis with the fewest errors, per utterance."""
        return self._largest(-self._errors)

    def _largest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of the first largest value, per utterance."""
        largest = np.maximum.reduceat(values, self.first)[self._utterance_of]
        indices = np.flatnonzero(values == largest)
        return indices[np.diff(self._utterance_of[indices], prepend=-1) > 0]

    def num_errors(self, weights: Mapping[str, float]) -> int:
        return int(self._errors[self.chosen(weights)].sum())

    def edits(self, indices: NDArray[np.int64]) -> list[int]:
        """Return the numbers of substitutions, deletions and insertions of these hypotheses."""
        counts: list[int] = self._edits[indices].sum(0).tolist()
        return counts


@dataclass(frozen=True)
class TuningRow:
    """A row of the table of word errors."""

    label: str
    edits: list[int]
    """Numbers of substitutions, deletions and insertions."""
    weights: str = ""


@dataclass(frozen=True)
class Tuning:
    """The best weights and their word errors."""

    weights: Mapping[str, float]
    """Weights of all scores."""
    option: str
    """The weight of the model's score, those set by the user and the tuned ones, as a value for
    `--weights`."""
    rows: tuple[TuningRow, ...]
    num_words: int
    """Number of words in the references."""
    summary: str

    def as_text(self) -> str:
        header = ["", "WER", "errors", "sub", "del", "ins"]
        lines = ["{:24} {:>7} {:>8} {:>7} {:>7} {:>7}  weights".format(*header)]
        for row in self.rows:
            kinds = " ".join(f"{number:7,}" for number in row.edits)
            errors = sum(row.edits)
            rate = 100 * errors / self.num_words
            line = f"{row.label:24} {rate:6.2f}% {errors:8,} {kinds}  {row.weights}"
            lines.append(line.rstrip())
        return "\n".join([*lines, self.summary, f"--weights {self.option}"])


def tune(
    utterances: Sequence[Sequence[Entry]],
    references: Mapping[str, Sequence[str]],
    start: Mapping[str, float],
    names: Sequence[str],
    *,
    lm: str = "lm",
    given: Iterable[str] = (),
) -> Tuning:
    """Find the best weights of `names` for scored lists. The other weights stay as in `start`.

    `lm` is the name of the model's score, and `given` are the names of the weights set by the user.
    """
    development = DevelopmentSet(utterances, references, [n for n, x in start.items() if x])
    shown = {lm, *given, *names}

    def option(weights: Mapping[str, float]) -> str:
        return format_weights({name: x for name, x in weights.items() if name in shown})

    def row(label: str, indices: NDArray[np.int64], weights: str = "") -> TuningRow:
        return TuningRow(label, development.edits(indices), weights)

    rows = [row("before rescoring", development.first)]
    without = {**start, lm: 0.0} | ({WORDS: 0.0} if WORDS in names else {})
    if any(without.values()):
        rows.append(row("without the model", development.chosen(without)))
    # Tuning the other weights without the model shows how much of the gain is due to the model.
    if others := [name for name in names if name != lm]:
        best = _search(development, without, others)
        rows.append(row("tuned, without the model", development.chosen(best), option(best)))
    weights = _search(development, start, names)
    rows.append(row("tuned, with the model", development.chosen(weights), option(weights)))
    rows.append(row("oracle", development.oracle()))
    summary = f"{development.num_words:,} words in {len(utterances):,} utterances"
    if ignored := len(references) - len(utterances):
        summary += f" ({ignored:,} references without hypotheses are ignored)"
    return Tuning(weights, option(weights), tuple(rows), development.num_words, summary)


def _search(
    development: DevelopmentSet, start: Mapping[str, float], names: Sequence[str]
) -> dict[str, float]:
    """Return all weights, with the best values for `names`."""
    grids = {name: _coarse(name) for name in names}
    best = dict(start)
    errors: dict[tuple[float, ...], int] = {}
    for _ in range(1 + _REFINEMENTS):
        for point in itertools.product(*grids.values()):
            if point not in errors:
                errors[point] = development.num_errors(best | dict(zip(names, point, strict=True)))
        # `errors` includes earlier grids, so a refinement never makes the result worse.
        smallest = min(errors, key=lambda point: (errors[point], *_size(point)))
        best |= zip(names, smallest, strict=True)
        grids = {name: _finer(grid, best[name]) for name, grid in grids.items()}
    return best


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
    return [0.0, *_GRID]


def _finer(grid: list[float], best: float) -> list[float]:
    index = grid.index(best)
    values = {best}
    for neighbor in grid[max(index - 1, 0) : index + 2]:
        for step in range(1, _STEPS + 1):
            values.add(_rounded(best + (neighbor - best) * step / _STEPS))
    return sorted(values)


def _rounded(value: float) -> float:
    # Round, so that the printed weights are exactly those that were tried; + 0.0 turns -0.0 into 0.
    return float(f"{value:.{_DIGITS}g}") + 0.0


def _size(point: tuple[float, ...]) -> tuple[object, ...]:
    sizes = tuple(abs(value) for value in point)
    return (sum(sizes), sizes, point)
