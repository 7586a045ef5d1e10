"""Score files from `zipflm score --per word`.

A file is a tab-separated table whose header ends with `# key=value ...`, or JSON lines, where the
first line has `columns` and `protocol`. The protocol names the run and describes how the text was
scored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.language.files import Writable, numbered_lines
from zipflm.language.nbest import parse_object
from zipflm.messages import quoted
from zipflm.units import NATS

_MAX_LOGPROB = 1e-6
"""Largest accepted log-probability. It is slightly above 0 because scores are rounded."""

RowFormat = Literal["tsv", "jsonl"]


@dataclass(frozen=True)
class ScoreFile:
    """The contents of a file of scores. Row 0 is on line 2."""

    name: str
    format: RowFormat
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
    format: RowFormat = "jsonl" if header.startswith("{") else "tsv"
    try:
        columns, protocol = (_object_header if format == "jsonl" else _table_header)(header)
    except ValueError as error:
        raise ValueError(f"{shown(name)}: line 1: {error}") from None
    unit = next((unit for unit in NATS if unit in columns), "logprob")
    for column in ("line", "position", "word", unit):
        if column not in columns:
            raise ValueError(
                f"{shown(name)}: line 1: has no column {column}; use files from zipflm score "
                "--per word"
            )
    keys, logprob, unknown = [], [], []
    for number, line in lines:
        try:
            row = parse_object(line) if format == "jsonl" else _table_row(columns, line)
            keys.append((int(row["line"]), int(row["position"]), str(row["word"])))
            value = float(row[unit])
            unknown.append(bool(int(row.get("unknown", 0))))
        except (KeyError, TypeError, ValueError):
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
    return ScoreFile(name, format, protocol, keys, np.array(logprob), np.array(unknown))


def _table_row(columns: Sequence[str], line: str) -> dict[str, Any]:
    return dict(zip(columns, line.split("\t"), strict=True))


def _table_header(line: str) -> tuple[list[str], dict[str, str]]:
    columns = line.split("\t")
    if not columns[-1].startswith("#"):
        return columns, {}
    pairs = (part.partition("=") for part in columns.pop().removeprefix("#").split())
    return columns, {key: unquote(value) for key, equals, value in pairs if equals}


def _object_header(line: str) -> tuple[list[str], dict[str, str]]:
    header = parse_object(line)
    columns, protocol = header.get("columns"), header.get("protocol", {})
    if not isinstance(columns, list) or not isinstance(protocol, dict):
        raise ValueError('is not {"protocol": {...}, "columns": [...]}')
    return [str(name) for name in columns], {key: str(value) for key, value in protocol.items()}


def header_line(
    format: RowFormat, columns: Sequence[str], protocol: Mapping[str, str | int]
) -> str:
    """Return the first line of a file: its columns and the scoring protocol."""
    if format == "jsonl":
        return json.dumps({"protocol": protocol, "columns": columns}, ensure_ascii=False)
    pairs = " ".join(f"{key}={quote(str(value), '/:+,')}" for key, value in protocol.items())
    return "\t".join([*columns, f"# {pairs}"])


def row_line(format: RowFormat, row: Mapping[str, Any]) -> str:
    if format == "jsonl":
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    return "\t".join(map(_field, row.values()))


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
    file.write(f"{header_line(scores.format, columns, scores.protocol)}\n")
    rows = zip(scores.keys, scores.logprob.tolist(), scores.unknown.tolist(), strict=True)
    for key, logprob, is_unknown in rows:
        values = (*key, rounded(logprob), int(is_unknown))
        file.write(f"{row_line(scores.format, dict(zip(columns, values, strict=True)))}\n")
