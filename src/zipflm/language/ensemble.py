"""Several models as one: the average of their probabilities, word by word, over the same text.

Averaging works on files of scores, so that the models may differ in everything but the text, and
need not be there at the same time. Weights are given, equal, or those under which the text is most
probable, which EM finds: the likelihood is concave in them, so there is one maximum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.data.vocabulary import END, SPECIALS
from zipflm.language.files import destination
from zipflm.language.score_table import ScoreFile, ScoreRows, write_header, write_rows
from zipflm.messages import quoted
from zipflm.units import perplexity

_MOST_STEPS = 2_000
_ENOUGH = 1e-10
"""Nats per word: EM stops when a step gains less."""

# What tells models apart; all else in a protocol is how the text was read.
_OWN = ("run", "checkpoint", "weights")


@dataclass(frozen=True)
class EnsembleMember:
    """One file of an ensemble."""

    name: str
    weight: float
    nats: float
    """Per word."""
    unknown: int
    protocol: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ensemble:
    """What came of it."""

    members: tuple[EnsembleMember, ...]
    nats: float
    """Per word, of the average."""
    words: int
    """`</s>` is one."""
    ends: int
    unknown: int
    """Words that one of the files calls unknown."""
    notes: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "perplexity": perplexity(self.nats),
            "nll": self.nats,
            "words": self.words,
            "ends": self.ends,
            "unknown": self.unknown,
            "members": [
                {
                    "file": member.name,
                    "weight": member.weight,
                    "perplexity": perplexity(member.nats),
                    "nll": member.nats,
                    "unknown": member.unknown,
                    "protocol": member.protocol,
                }
                for member in self.members
            ],
            "notes": list(self.notes),
        }

    def as_json(self) -> str:
        return json.dumps(self.report(), indent=1)

    def as_text(self) -> str:
        """A table for people, and the option that stands for the weights."""
        width = max(len("ensemble"), *(len(member.name) for member in self.members))
        lines = [f"{'':{width}} {'perplexity':>12} {'nats':>9} {'weight':>8}"]
        lines += [
            f"{member.name:{width}} {perplexity(member.nats):12.4f} {member.nats:9.5f} "
            f"{member.weight:8.4f}"
            for member in self.members
        ]
        lines += [
            f"{'ensemble':{width}} {perplexity(self.nats):12.4f} {self.nats:9.5f}",
            f"{self.words:,} words, of these {self.ends:,} line ends and {self.unknown:,} unknown",
            *(f"note: {note}" for note in self.notes),
            f"--weights {self.option}",
        ]
        return "\n".join(lines)

    @property
    def option(self) -> str:
        """The weights, to give again."""
        return _written([member.weight for member in self.members])


def ensemble(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    best_weights: bool = False,
    out: str | None = None,
) -> Ensemble:
    """Average the probabilities of several files of scores over the same text.

    Weights are divided by their sum, and equal unless given or, with `best_weights`, fitted to this
    text; that holds all log-probabilities in memory. `out` is a file for the averaged scores.
    Raises ValueError for files over different texts, naming the first row that differs.
    """
    if len(names) < 2:
        raise ValueError("an ensemble is made of two or more files of zipflm score --per word")
    if best_weights and weights is not None:
        raise ValueError("weights and best_weights: give one of them")
    mixture = _checked_weights(weights, len(names))
    files = [ScoreFile(name) for name in names]
    blocks = _together(files)
    if best_weights:
        kept = list(blocks)
        mixture = em_weights(np.concatenate([_matrix(rows) for rows in kept]))
        blocks = iter(kept)
    totals = _Sums(len(files))
    with nullcontext() if out is None else destination(out) as file:
        if file is not None:
            write_header(file, files[0].format, _protocol(files, mixture))
        for rows in blocks:
            logprob = averaged(_matrix(rows), mixture)
            unknown = totals.add(rows, logprob)
            if file is not None:
                write_rows(file, files[0].format, rows[0].keys, logprob, unknown)
    return totals.result(files, mixture)


def _protocol(files: Sequence[ScoreFile], mixture: NDArray[np.float64]) -> dict[str, str]:
    protocol = {"run": "ensemble", "weights": _written(mixture)}
    for key in _shared_keys(files):
        values = {each.protocol.get(key) for each in files}
        protocol[key] = str(values.pop()) if len(values) == 1 else "mixed"
    return protocol


def averaged(
    logprob_NM: NDArray[np.float64], mixture_M: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log of the weighted average of probabilities, [N], from N words under M models.

    >>> averaged(np.log([[0.5, 0.1]]), np.array([0.5, 0.5])).round(4)  # log 0.3
    array([-1.204])
    """
    used = mixture_M > 0
    joint_NM = logprob_NM[:, used] + np.log(mixture_M[used])
    top_N = joint_NM.max(axis=1)
    mean_N: NDArray[np.float64] = top_N + np.log(np.exp(joint_NM - top_N[:, None]).sum(axis=1))
    return mean_N


def em_weights(logprob_NM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights [M] under which N words are most probable."""
    scaled_NM = np.exp(logprob_NM - logprob_NM.max(axis=1, keepdims=True))
    mixture = np.full(scaled_NM.shape[1], 1 / scaled_NM.shape[1])
    before = -np.inf
    for _ in range(_MOST_STEPS):
        mean_N = scaled_NM @ mixture
        now = float(np.log(mean_N).mean())
        if now - before < _ENOUGH:
            break
        before = now
        # Each model's share in the probability of every word, averaged.
        mixture = mixture * (scaled_NM / mean_N[:, None]).mean(axis=0)
        mixture /= mixture.sum()
    return mixture


def _checked_weights(weights: Sequence[float] | None, number: int) -> NDArray[np.float64]:
    if weights is None:
        return np.full(number, 1 / number)
    said = f"--weights {','.join(f'{weight:g}' for weight in weights)}"
    if len(weights) != number:
        raise ValueError(f"{said}: {len(weights)} weights for {number} files")
    values: NDArray[np.float64] = np.array(weights, dtype=np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all() and 0 < values.sum() < np.inf):
        raise ValueError(f"{said}: must be 0 or more each, and not all 0")
    values /= values.sum()
    return values


def _together(files: Sequence[ScoreFile]) -> Iterator[list[ScoreRows]]:
    """The rows of all files side by side; ValueError where they are of different texts."""
    for blocks in zip_longest(*(each.blocks() for each in files)):
        rows = [ScoreRows(0, [], _NOTHING, _NOTHING > 0) if b is None else b for b in blocks]
        for file, others in zip(files[1:], rows[1:], strict=True):
            if others.keys != rows[0].keys:
                _tell_difference(files[0], rows[0], file, others)
        yield rows


_NOTHING = np.zeros(0)


def _tell_difference(
    first: ScoreFile, expected: ScoreRows, file: ScoreFile, found: ScoreRows
) -> None:
    for index, (one, other) in enumerate(zip_longest(expected.keys, found.keys)):
        if one == other:
            continue
        if one is None or other is None:
            short, long, rows = (first, file, found) if one is None else (file, first, expected)
            raise ValueError(
                f"{shown(short.name)}: ends where {shown(long.name)} goes on at line "
                f"{rows.first_line + index}; score the same text with every run"
            )
        raise ValueError(
            f"{shown(file.name)}: line {found.first_line + index}: {_told(other)}, but "
            f"{shown(first.name)}: line {expected.first_line + index}: {_told(one)}; score the "
            "same text with every run, in the same way"
        )


def _told(key: tuple[int, int, str]) -> str:
    line, position, word = key
    return f"{quoted(word)} is word {position} of text line {line}"


def _matrix(rows: Sequence[ScoreRows]) -> NDArray[np.float64]:
    return np.stack([each.logprob for each in rows], axis=1)


class _Sums:
    """Sums over the whole text."""

    def __init__(self, members: int) -> None:
        self._sums = np.zeros(members + 1)
        self._unknown = np.zeros(members, dtype=np.int64)
        self._words = self._ends = self._any_unknown = self._disputed = 0

    def add(self, rows: Sequence[ScoreRows], average: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Count some rows; which of their words are unknown to one of the models."""
        for place, each in enumerate(rows):
            self._sums[place] -= each.logprob.sum()
            self._unknown[place] += np.count_nonzero(each.unknown)
        self._sums[-1] -= average.sum()
        flags = np.stack([each.unknown for each in rows], axis=1)
        unknown: NDArray[np.bool_] = np.logical_or.reduce(flags, axis=1)
        self._words += len(average)
        self._ends += sum(word == SPECIALS[END] for _, _, word in rows[0].keys)
        self._any_unknown += int(np.count_nonzero(unknown))
        self._disputed += int(np.count_nonzero(unknown & ~np.logical_and.reduce(flags, axis=1)))
        return unknown

    def result(self, files: Sequence[ScoreFile], mixture: NDArray[np.float64]) -> Ensemble:
        notes = _differences(files)
        if self._disputed:
            notes.append(
                f"{self._disputed:,} words are unknown to some of the models only; the probability "
                "of an unknown word is that of all of them together, so these perplexities are "
                "not of the same thing"
            )
        members = tuple(
            EnsembleMember(
                shown(file.name), float(weight), float(total), int(unknown), file.protocol
            )
            for file, weight, total, unknown in zip(
                files, mixture, self._sums / self._words, self._unknown, strict=False
            )
        )
        return Ensemble(
            members=members,
            nats=float(self._sums[-1] / self._words),
            words=self._words,
            ends=self._ends,
            unknown=self._any_unknown,
            notes=tuple(notes),
        )


def _differences(files: Sequence[ScoreFile]) -> list[str]:
    """What was not done in the same way."""
    notes = []
    for key in _shared_keys(files):
        values = [file.protocol.get(key, "not told") for file in files]
        if len(set(values)) > 1:
            told = ", ".join(
                f"{value} ({shown(file.name)})" for file, value in zip(files, values, strict=True)
            )
            notes.append(f"scored with different {key}: {told}")
    return notes


def _shared_keys(files: Sequence[ScoreFile]) -> list[str]:
    """What all protocols should agree on."""
    return [*dict.fromkeys(key for each in files for key in each.protocol if key not in _OWN)]


def _written(weights: Iterable[float]) -> str:
    return ",".join(f"{round(float(weight), 6):g}" for weight in weights)
