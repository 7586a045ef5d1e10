"""Rescoring n-best lists: a language model's score added to others, and the list sorted anew.

    total = sum of weight * score + weight of words * number of words

A list's scores count 1, unless the list has a `total`: that one was made of the others, so it
counts 1 and they count 0. The language model counts 1 and the number of words 0.
What scores hypotheses is anything with `log_probs_of`; `hypotheses` has the one for trained models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from zipflm.data.text import shown
from zipflm.language.nbest import TOTAL, WORDS, Entry, NBest, written_number
from zipflm.language.output import Writable, destination
from zipflm.quoting import quoted, unquoted

_HYPOTHESES_AT_ONCE = 1_024
"""Enough to fill a device, and little enough to be held in memory with all their text."""


class HypothesisScorer(Protocol):
    """A language model, as rescoring sees it."""

    def log_probs_of(self, utterances: Sequence[Sequence[str]]) -> list[list[float]]:
        """log p of every text, its end included, in nats, per utterance in the order given.

        The texts of an utterance are different, and the empty one may be among them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scored:
    """An entry with what the language model says of it."""

    entry: Entry
    lm: float

    def value(self, name: str, lm: str) -> float:
        """One of the things that are weighted, by its name."""
        if name == lm:
            return self.lm
        return float(len(self.entry.words)) if name == WORDS else self.entry.scores[name]

    def total(self, weights: Mapping[str, float], lm: str) -> float:
        """The weighted sum, added up in the order of the weights, as tuning does it."""
        total = 0.0
        for name, weight in weights.items():
            if weight:
                total += weight * self.value(name, lm)
        return total


def scored(utterances: Iterable[list[Entry]], scorer: HypothesisScorer) -> Iterator[list[Scored]]:
    """The same utterances with the language model's scores, so many at once as fit."""
    group: list[list[Entry]] = []
    for entries in utterances:
        group.append(entries)
        if sum(map(len, group)) >= _HYPOTHESES_AT_ONCE:
            yield from _scored_group(group, scorer)
            group = []
    if group:
        yield from _scored_group(group, scorer)


def _scored_group(group: list[list[Entry]], scorer: HypothesisScorer) -> Iterator[list[Scored]]:
    # Lists hold a text several times, in which only alignments or times differ.
    texts = [list(dict.fromkeys(" ".join(entry.words) for entry in entries)) for entries in group]
    found = scorer.log_probs_of(texts)
    for entries, known, log_probs in zip(group, texts, found, strict=True):
        by_text = dict(zip(known, log_probs, strict=True))
        yield [Scored(entry, by_text[" ".join(entry.words)]) for entry in entries]


def ranked(
    utterance: list[Scored], weights: Mapping[str, float], lm: str
) -> list[tuple[Scored, float]]:
    """The hypotheses with their totals, best first; equal ones stay in the order of the list."""
    totals = [(one, one.total(weights, lm)) for one in utterance]
    return sorted(totals, key=lambda pair: -pair[1])


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where a list goes that has been scored."""

    out: str | None = None
    """A file; standard output unless given."""
    scores_out: str | None = None
    """For Kaldi's lists, which have no place for them: `hypothesis lm total`, in the same order."""
    one_best: bool = False
    """Only the best hypothesis of every utterance."""


@dataclass(frozen=True)
class OpenLists:
    """A list that has begun to be read, and is known to fit the weights."""

    nbest: NBest
    weights: Mapping[str, float]
    """Of every score, of the model's and of the words."""
    lm: str
    """What the model's score is called."""
    utterances: Iterator[list[Entry]]
    """All of them, once; ValueError, naming the line, for one without a score that counts."""


def open_lists(nbest: NBest, given: Mapping[str, float], lm: str = "lm") -> OpenLists:
    """Read the first utterance, which tells what scores there are. `given` are those weights that
    are not the usual ones."""
    rest = nbest.utterances()
    first = next(rest)
    weights = complete_weights(given, first[0].scores, lm)
    needed = [name for name, weight in weights.items() if weight and name not in (lm, WORDS)]
    utterances = (_checked(nbest, entries, needed) for entries in chain([first], rest))
    return OpenLists(nbest, weights, lm, utterances)


def _checked(nbest: NBest, entries: list[Entry], needed: Sequence[str]) -> list[Entry]:
    for entry in entries:
        for name in needed:
            if name not in entry.scores:
                raise ValueError(
                    f"{shown(nbest.name)}: line {entry.line}: has no score {unquoted(name)}, which "
                    "counts; give that the weight 0, or every line the score"
                )
    return entries


def rescore(lists: OpenLists, scorer: HypothesisScorer, results: Results) -> int:
    """Score and sort lists while they are read; how many utterances they had."""
    utterances = scored(lists.utterances, scorer)
    return write(lists.nbest, utterances, lists.weights, lm=lists.lm, results=results)


def write(
    nbest: NBest,
    utterances: Iterable[list[Scored]],
    weights: Mapping[str, float],
    *,
    lm: str,
    results: Results,
) -> int:
    """Write utterances as they come, best hypothesis first; how many there were."""
    number = 0
    with ExitStack() as files:
        out = files.enter_context(destination(results.out))
        scores_out: Writable | None = None
        if results.scores_out is not None:
            scores_out = files.enter_context(destination(results.scores_out))
        if not results.one_best and (header := nbest.format.header((lm, TOTAL))):
            out.write(f"{header}\n")
        for utterance in utterances:
            number += 1
            order = ranked(utterance, weights, lm)
            if results.one_best:
                out.write(f"{nbest.format.best(order[0][0].entry)}\n")
            else:
                for one, total in order:
                    out.write(f"{nbest.format.line(one.entry, {lm: one.lm, TOTAL: total})}\n")
            if scores_out is not None:
                for one, total in order:
                    numbers = f"{written_number(one.lm)} {written_number(total)}"
                    scores_out.write(f"{one.entry.source} {numbers}\n")
    return number


# --- Weights: `lm=0.7,words=-0.2`. ---


def parse_weights(text: str) -> dict[str, float]:
    """Weights by name, as given on a command line.

    >>> parse_weights("lm=0.7,words=-0.2")
    {'lm': 0.7, 'words': -0.2}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        name = name.strip()
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (equals and name and math.isfinite(value)):
            raise ValueError(
                f"--weights: {quoted(part)} is not a name, = and a number (lm=0.7,words=-0.2)"
            )
        if name in weights:
            raise ValueError(f"--weights: {unquoted(name)} is there twice")
        weights[name] = value
    return weights


def written_weights(weights: Mapping[str, float]) -> str:
    """What `parse_weights` reads.

    >>> written_weights({"lm": 0.7, "words": -2.0})
    'lm=0.7,words=-2'
    """
    return ",".join(f"{name}={value:.12g}" for name, value in weights.items())


def complete_weights(given: Mapping[str, float], names: Iterable[str], lm: str) -> dict[str, float]:
    """A weight for every score of a list, for the model's score `lm` and for the words.

    Raises ValueError for names that are not there, and where it is unclear whether the total holds
    a score already.
    """
    names = list(names)
    if lm in names:
        raise ValueError(
            f"the list already has a score {unquoted(lm)}; call the new one otherwise with --name"
        )
    known = [*names, lm, WORDS]
    for name in given:
        if name not in known:
            raise ValueError(
                f"--weights: no score {unquoted(name)}; there are "
                f"{', '.join(unquoted(known_name) for known_name in known)}"
            )
    doubted = [name for name in given if name in names and name != TOTAL]
    if TOTAL in names and TOTAL not in given and doubted:
        raise ValueError(
            f"--weights: the list has a total, which may hold {unquoted(doubted[0])} already; give "
            f"{TOTAL} a weight too, 0 to leave it out or 1 to add to it"
        )
    usual = {name: float(TOTAL not in names or name == TOTAL) for name in names}
    return usual | {lm: 1.0, WORDS: 0.0} | dict(given)


def check_name(lm: str) -> None:
    """ValueError for what the model's score cannot be called."""
    if lm in (WORDS, TOTAL, "id", "text") or not lm.isidentifier():
        raise ValueError(
            f"--name {unquoted(lm)}: must be letters, digits and _, and none of "
            f"{WORDS}, {TOTAL}, id and text"
        )
