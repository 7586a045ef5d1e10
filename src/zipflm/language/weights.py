"""Weights of scores: `lm=0.7,words=-0.2`, and what counts where nothing is said.

A list's scores count 1, unless the list has a `total`: that one was made of the others, so it
counts 1 and they count 0. The language model counts 1 and the number of words 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from zipflm.language.nbest import TOTAL, WORDS
from zipflm.quoting import quoted, unquoted


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
