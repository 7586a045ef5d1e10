"""Ensembles: average the probabilities of several models, word by word, from files of scores.

The weights are given, equal, or fitted with EM. The log-likelihood is concave in the weights, so EM
finds the global maximum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.data.vocabulary import END, SPECIALS
from zipflm.language.files import destination
from zipflm.language.score_table import ScoreFile, read_scores, write_scores
from zipflm.messages import quoted
from zipflm.units import perplexity

_MAX_STEPS = 2_000
"""Maximum number of EM steps."""
_MIN_GAIN = 1e-10
"""EM stops when a step improves the loss by less than this, in nats per word."""

# The header of a score file lists settings as `key=value` pairs, called its protocol. These keys
# identify the model; all others describe how the text was scored.
_MODEL_KEYS = ("run", "checkpoint", "weights")


@dataclass(frozen=True)
class EnsembleMember:
    file: str
    weight: float
    perplexity: float
    nll: float
    """Mean per word, in nats."""
    unknown: int
    """Number of words scored as `<unk>`."""
    protocol: dict[str, str]


@dataclass(frozen=True)
class Ensemble:
    """Perplexity of an ensemble and its members."""

    perplexity: float
    nll: float
    """Mean per word, in nats."""
    words: int
    """Number of words, including `</s>`."""
    ends: int
    """Number of `</s>`."""
    unknown: int
    """Number of words that are unknown in at least one file."""
    members: tuple[EnsembleMember, ...]
    notes: tuple[str, ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def as_text(self) -> str:
        width = max(len("ensemble"), *(len(member.file) for member in self.members))
        weights = _format_weights(member.weight for member in self.members)
        return "\n".join(
            [
                f"{'':{width}} {'perplexity':>12} {'nats':>9} {'weight':>8}",
                *(
                    f"{m.file:{width}} {m.perplexity:12.4f} {m.nll:9.5f} {m.weight:8.4f}"
                    for m in self.members
                ),
                f"{'ensemble':{width}} {self.perplexity:12.4f} {self.nll:9.5f}",
                f"{self.words:,} words, including {self.ends:,} line ends and {self.unknown:,} "
                "unknown words",
                *(f"note: {note}" for note in self.notes),
                f"--weights {weights}",
            ]
        )


def ensemble(
    names: Sequence[str],
    weights: Sequence[float] | Literal["fit"] | None = None,
    *,
    out: str | None = None,
) -> Ensemble:
    """Average the probabilities in several files of scores for the same text.

    Weights are normalized to sum to 1. They are equal by default; `fit` finds the best ones for
    this text. With `out`, the averaged scores are written to this file.
    """
    mixture = _check_weights(None if weights == "fit" else weights, len(names))
    files = [read_scores(name) for name in names]
    for file in files[1:]:
        _require_same_text(files[0], file)
    logprob_NM = np.stack([file.logprob for file in files], axis=1)
    if weights == "fit":
        mixture = em_weights(logprob_NM)
    average = average_logprobs(logprob_NM, mixture)
    unknown_NM = np.stack([file.unknown for file in files], axis=1)
    is_unknown: NDArray[np.bool_] = np.logical_or.reduce(unknown_NM, axis=1)
    settings = _settings(files)
    if out is not None:
        protocol = {"run": "ensemble", "weights": _format_weights(mixture)}
        for key, values in settings.items():
            protocol[key] = values[0] if len(set(values)) == 1 else "mixed"
        averaged = replace(files[0], protocol=protocol, logprob=average, unknown=is_unknown)
        with destination(out) as output:
            write_scores(output, averaged)
    notes = [
        f"scored with different values of {key}: "
        + ", ".join(
            f"{value} ({shown(file.name)})" for file, value in zip(files, values, strict=True)
        )
        for key, values in settings.items()
        if len(set(values)) > 1
    ]
    if disputed := np.count_nonzero(is_unknown & ~unknown_NM.all(axis=1)):
        notes.append(
            f"{disputed:,} words are unknown to only some models; the perplexities are not "
            "comparable, because <unk> has the total probability of all unknown words"
        )
    nll = -float(average.mean())
    return Ensemble(
        perplexity=perplexity(nll),
        nll=nll,
        words=len(average),
        ends=sum(word == SPECIALS[END] for _, _, word in files[0].keys),
        unknown=int(is_unknown.sum()),
        members=tuple(map(_member, files, mixture.tolist())),
        notes=tuple(notes),
    )


def _member(file: ScoreFile, weight: float) -> EnsembleMember:
    nll, unknown = -float(file.logprob.mean()), int(file.unknown.sum())
    return EnsembleMember(shown(file.name), weight, perplexity(nll), nll, unknown, file.protocol)


def average_logprobs(
    logprob_NM: NDArray[np.float64], mixture_M: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the log of the weighted average of probabilities, [N], for N words and M models.

    >>> average_logprobs(np.log([[0.5, 0.1]]), np.array([0.5, 0.5])).round(4)  # log 0.3
    array([-1.204])
    """
    used = mixture_M > 0
    mean_N: NDArray[np.float64] = np.logaddexp.reduce(
        logprob_NM[:, used] + np.log(mixture_M[used]), axis=1
    )
    return mean_N


def em_weights(logprob_NM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights [M] of M models that maximize the probability of N words."""
    scaled_NM = np.exp(logprob_NM - logprob_NM.max(axis=1, keepdims=True))
    mixture = np.full(scaled_NM.shape[1], 1 / scaled_NM.shape[1])
    before = -np.inf
    for _ in range(_MAX_STEPS):
        mean_N = scaled_NM @ mixture
        now = float(np.log(mean_N).mean())
        if now - before < _MIN_GAIN:
            break
        before = now
        # The share of each model in the probability of a word, averaged over all words.
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
        raise ValueError(f"{option}: must be finite, 0 or more, and not all 0")
    values /= values.sum()
    return values


def _require_same_text(first: ScoreFile, other: ScoreFile) -> None:
    """Raise ValueError if the texts differ, and name the first row that differs."""
    pairs = zip_longest(first.keys, other.keys)
    for line, (one, two) in enumerate(pairs, start=2):
        if one != two:
            raise ValueError(
                f"{shown(other.name)}: line {line}: {_describe(two)}, but in "
                f"{shown(first.name)}, {_describe(one)}; score the same text with every run, with "
                "the same options"
            )


def _describe(key: tuple[int, int, str] | None) -> str:
    if key is None:
        return "the file ends"
    line, position, word = key
    return f"{quoted(word)} is word {position} of text line {line}"


def _settings(files: Sequence[ScoreFile]) -> dict[str, list[str]]:
    """Return the value in each file of all settings that describe how the text was scored."""
    keys = dict.fromkeys(key for file in files for key in file.protocol if key not in _MODEL_KEYS)
    return {key: [file.protocol.get(key, "unknown") for file in files] for key in keys}


def _format_weights(weights: Iterable[float]) -> str:
    return ",".join(f"{round(float(weight), 6):g}" for weight in weights)
