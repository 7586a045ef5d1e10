"""Weights of scores in n-best lists, e.g. `lm=0.7,words=-0.2`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from zipflm.language.nbest import TOTAL, WORDS
from zipflm.messages import quoted, unquoted


def parse_weights(text: str) -> dict[str, float]:
    """Parse the value of `--weights`.

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
                f"--weights: {quoted(part)} is not NAME=NUMBER, e.g. lm=0.7,words=-0.2"
            )
        if name in weights:
            raise ValueError(f"--weights: {unquoted(name)} is repeated; use it once")
        weights[name] = value
    return weights


def format_weights(weights: Mapping[str, float]) -> str:
    """Format weights for `parse_weights`.

    >>> format_weights({"lm": 0.7, "words": -2.0})
    'lm=0.7,words=-2'
    """
    return ",".join(f"{name}={value:.12g}" for name, value in weights.items())


def complete_weights(given: Mapping[str, float], names: Iterable[str], lm: str) -> dict[str, float]:
    """Add default weights for the scores of a list, the model's score `lm` and the number of words.

    The model has weight 1 and the number of words 0. If the list has a total, the total has weight
    1 and the other scores of the list 0; otherwise all scores of the list have weight 1.
    Raises ValueError for unknown names, if the list already has a score `lm`, and if the total
    could already include a score in `given`.
    """
    names = list(names)
    if lm in names:
        raise ValueError(
            f"--name {unquoted(lm)}: the list already has a score with this name; choose another"
        )
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


def check_name(lm: str) -> None:
    """Raise ValueError if the model's score cannot have this name."""
    if lm in (WORDS, TOTAL, "id", "text") or not lm.isidentifier():
        raise ValueError(
            f"--name {unquoted(lm)}: must consist of letters, digits and _, not start with a "
            f"digit, and not be {WORDS}, {TOTAL}, id or text"
        )
