"""Score files from `zipflm score --per word`.

A file is a tab-separated table whose header ends with `# key=value ...`. This protocol names the
run and describes how the text was scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.language.files import Writable, numbered_lines
from zipflm.messages import quoted
from zipflm.units import NATS

_MAX_LOGPROB = 1e-6
"""Largest accepted log-probability. It is slightly above 0 because scores are rounded."""


@dataclass(frozen=True)
class ScoreFile:
    """The contents of a file of scores. Row 0 is on line 2."""

    name: str
    protocol: dict[str, str]
    keys: list[tuple[int, int, str]]
    """Line and position in the text, and the word."""
    logprob: NDArray[np.float64]
    """In nats."""
    unknown: NDArray[np.bool_]


def read_scores(name: str) -> ScoreFile:
    """Read a file of scores. Raises ValueError with the line number for an invalid line."""
    lines = numbered_lines(name)
    _, header = next(lines)
    columns, protocol = header.split("\t"), {}
    if columns[-1].startswith("#"):
        pairs = (part.partition("=") for part in columns.pop().split())
        protocol = {key: unquote(value) for key, equals, value in pairs if equals}
    unit = next((unit for unit in NATS if unit in columns), "logprob")
    for column in ("line", "position", "word", unit):
        if column not in columns:
            raise ValueError(
                f"{shown(name)}: line 1: has no column {column}; use files from zipflm score "
                "--per word, without --json"
            )
    keys, logprob, unknown = [], [], []
    for number, line in lines:
        try:
            row = dict(zip(columns, line.split("\t"), strict=True))
            keys.append((int(row["line"]), int(row["position"]), row["word"]))
            value = float(row[unit])
            unknown.append(row.get("unknown") == "1")
        except ValueError:
            raise ValueError(
                f"{shown(name)}: line {number}: {quoted(line)} is not a row of {', '.join(columns)}"
            ) from None
        logprob.append(value * NATS[unit])
        if not -math.inf < logprob[-1] <= _MAX_LOGPROB:
            raise ValueError(
                f"{shown(name)}: line {number}: no probability above 0 has {unit} {value:g}"
            )
    if not keys:
        raise ValueError(f"{shown(name)}: has a header but no rows; score some text")
    return ScoreFile(name, protocol, keys, np.array(logprob), np.array(unknown))


def header_line(columns: Iterable[str], protocol: Mapping[str, str | int]) -> str:
    """Return the first line of a file: its columns and the scoring protocol."""
    pairs = " ".join(f"{key}={quote(str(value), '/:+,')}" for key, value in protocol.items())
    return "\t".join([*columns, f"# {pairs}"])


def row_line(values: Iterable[Any]) -> str:
    return "\t".join(map(_field, values))


def _field(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(int(value))
        case float():
            return f"{value:.6f}"
        case list():  # the most likely words; words contain no spaces
            return " ".join(f"{word}={score:.6f}" for word, score in value)
        case _:
            return str(value)


def rounded(value: float) -> float:
    """Round to 6 decimals. Adding 0.0 turns -0.0 into 0.0."""
    return round(value, 6) + 0.0


def write_scores(file: Writable, scores: ScoreFile) -> None:
    columns = ("line", "position", "word", "logprob", "unknown")
    file.write(f"{header_line(columns, scores.protocol)}\n")
    rows = zip(scores.keys, scores.logprob.tolist(), scores.unknown.tolist(), strict=True)
    for key, logprob, is_unknown in rows:
        file.write(f"{row_line((*key, rounded(logprob), is_unknown))}\n")
