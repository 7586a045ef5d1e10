"""Ensembles: average the probabilities of several models, word by word, from files of scores.

The weights are given, equal, or fitted with EM. The log-likelihood is concave in the weights, so EM
finds the global maximum.
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

_MAX_STEPS = 2_000
_MIN_GAIN = 1e-10
"""EM stops when a step improves the loss by less than this, in nats per word."""

# Protocol keys that identify the model; all others describe how the text was scored.
_MODEL_KEYS = ("run", "checkpoint", "weights")


@dataclass(frozen=True)
class EnsembleMember:
    name: str
    weight: float
    nats: float
    """Per word."""
    unknown: int
    protocol: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ensemble:
    """Perplexity of an ensemble and its members."""

    members: tuple[EnsembleMember, ...]
    nats: float
    """Per word."""
    words: int
    """Number of words, including `</s>`."""
    ends: int
    unknown: int
    """Number of words that are unknown in at least one file."""
    notes: tuple[str, ...]

    def report(self) -> dict[str, Any]:
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
        """The weights as a value for `--weights`."""
        return _format_weights([member.weight for member in self.members])


def ensemble(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    best_weights: bool = False,
    out: str | None = None,
) -> Ensemble:
    """Average the probabilities in several files of scores for the same text.

    Weights are normalized to sum to 1; the default is equal weights. `best_weights` fits them to
    this text, which keeps all log-probabilities in memory. The averaged scores are written to the
    file `out`. Raises ValueError with the first different row if the texts differ.
    """
    if len(names) < 2:
        raise ValueError("an ensemble needs two or more files from zipflm score --per word")
    if best_weights and weights is not None:
        raise ValueError("weights, best_weights: use only one of them")
    mixture = _check_weights(weights, len(names))
    files = [ScoreFile(name) for name in names]
    blocks = _align(files)
    if best_weights:
        all_blocks = list(blocks)
        mixture = em_weights(np.concatenate([_matrix(rows) for rows in all_blocks]))
        blocks = iter(all_blocks)
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
    protocol = {"run": "ensemble", "weights": _format_weights(mixture)}
    for key in _shared_keys(files):
        values = {file.protocol.get(key) for file in files}
        protocol[key] = str(values.pop()) if len(values) == 1 else "mixed"
    return protocol


def averaged(
    logprob_NM: NDArray[np.float64], mixture_M: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the log of the weighted average of probabilities, [N], for N words and M models.

    >>> averaged(np.log([[0.5, 0.1]]), np.array([0.5, 0.5])).round(4)  # log 0.3
    array([-1.204])
    """
    used = mixture_M > 0
    joint_NM = logprob_NM[:, used] + np.log(mixture_M[used])
    top_N = joint_NM.max(axis=1)
    mean_N: NDArray[np.float64] = top_N + np.log(np.exp(joint_NM - top_N[:, None]).sum(axis=1))
    return mean_N


def em_weights(logprob_NM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights [M] that maximize the probability of N words."""
    scaled_NM = np.exp(logprob_NM - logprob_NM.max(axis=1, keepdims=True))
    mixture = np.full(scaled_NM.shape[1], 1 / scaled_NM.shape[1])
    before = -np.inf
    for _ in range(_MAX_STEPS):
        mean_N = scaled_NM @ mixture
        now = float(np.log(mean_N).mean())
        if now - before < _MIN_GAIN:
            break
        before = now
        # The average contribution of each model to the probability of a word.
        mixture = mixture * (scaled_NM / mean_N[:, None]).mean(axis=0)
        mixture /= mixture.sum()
    return mixture


def _check_weights(weights: Sequence[float] | None, count: int) -> NDArray[np.float64]:
    if weights is None:
        return np.full(count, 1 / count)
    option = f"weights={','.join(f'{weight:g}' for weight in weights)}"
    if len(weights) != count:
        raise ValueError(f"{option}: {len(weights)} weights for {count} files; give one per file")
    values: NDArray[np.float64] = np.array(weights, dtype=np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all() and 0 < values.sum() < np.inf):
        raise ValueError(f"{option}: must be 0 or more, and not all 0")
    values /= values.sum()
    return values


def _align(files: Sequence[ScoreFile]) -> Iterator[list[ScoreRows]]:
    """Yield the rows of all files in parallel. Raises ValueError if the texts differ."""
    empty = ScoreRows(0, [], np.zeros(0), np.zeros(0, dtype=np.bool_))
    for rows in zip_longest(*(file.blocks() for file in files), fillvalue=empty):
        for file, others in zip(files[1:], rows[1:], strict=True):
            if others.keys != rows[0].keys:
                _raise_difference(files[0], rows[0], file, others)
        yield list(rows)


def _raise_difference(
    first: ScoreFile, expected: ScoreRows, file: ScoreFile, found: ScoreRows
) -> None:
    for index, (one, other) in enumerate(zip_longest(expected.keys, found.keys)):
        if one == other:
            continue
        if one is None or other is None:
            short, long, rows = (first, file, found) if one is None else (file, first, expected)
            raise ValueError(
                f"{shown(short.name)}: ends where {shown(long.name)} continues at line "
                f"{rows.first_line + index}; score the same text with every run"
            )
        raise ValueError(
            f"{shown(file.name)}: line {found.first_line + index}: {_describe(other)}, but "
            f"{shown(first.name)}: line {expected.first_line + index}: {_describe(one)}; score the "
            "same text with every run, with the same options"
        )


def _describe(key: tuple[int, int, str]) -> str:
    line, position, word = key
    return f"{quoted(word)} is word {position} of text line {line}"


def _matrix(rows: Sequence[ScoreRows]) -> NDArray[np.float64]:
    return np.stack([member.logprob for member in rows], axis=1)


class _Sums:
    def __init__(self, members: int) -> None:
        self._sums = np.zeros(members + 1)
        self._unknown = np.zeros(members, dtype=np.int64)
        self._words = self._ends = self._any_unknown = self._disputed = 0

    def add(self, rows: Sequence[ScoreRows], average: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Add rows, and return a mask of the words that are unknown to at least one model."""
        for index, member in enumerate(rows):
            self._sums[index] -= member.logprob.sum()
            self._unknown[index] += np.count_nonzero(member.unknown)
        self._sums[-1] -= average.sum()
        flags = np.stack([member.unknown for member in rows], axis=1)
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
                f"{self._disputed:,} words are unknown to only some models; the perplexities are "
                "not comparable, because <unk> has the total probability of all unknown words"
            )
        *nats, average = (self._sums / self._words).tolist()
        columns = zip(files, mixture.tolist(), nats, self._unknown.tolist(), strict=True)
        return Ensemble(
            members=tuple(
                EnsembleMember(shown(file.name), weight, loss, unknown, file.protocol)
                for file, weight, loss, unknown in columns
            ),
            nats=average,
            words=self._words,
            ends=self._ends,
            unknown=self._any_unknown,
            notes=tuple(notes),
        )


def _differences(files: Sequence[ScoreFile]) -> list[str]:
    notes = []
    for key in _shared_keys(files):
        values = [file.protocol.get(key, "unknown") for file in files]
        if len(set(values)) > 1:
            listed = ", ".join(
                f"{value} ({shown(file.name)})" for file, value in zip(files, values, strict=True)
            )
            notes.append(f"scored with different {key}: {listed}")
    return notes


def _shared_keys(files: Sequence[ScoreFile]) -> list[str]:
    keys = dict.fromkeys(key for file in files for key in file.protocol)
    return [key for key in keys if key not in _MODEL_KEYS]


def _format_weights(weights: Iterable[float]) -> str:
    return ",".join(f"{round(float(weight), 6):g}" for weight in weights)
