"""Score files from `zipflm score --per word`, read and written in blocks of rows.

A file is a tab-separated table whose header ends with `# key=value ...`, or JSON lines, where the
first line has `columns` and `protocol`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.language.files import Writable, numbered_lines
from zipflm.language.nbest import parse_object
from zipflm.messages import quoted
from zipflm.units import NATS

_ROWS_PER_BLOCK = 16_384
_MAX_LOGPROB = 1e-6
"""Slightly above 0, for rounding."""

RowFormat = Literal["tsv", "jsonl"]


@dataclass(frozen=True)
class ScoreRows:
    """Consecutive rows of a file."""

    first_line: int
    """Line number of the first row in the file."""
    keys: list[tuple[int, int, str]]
    """Line and position in the text, and the word."""
    logprob: NDArray[np.float64]
    """In nats."""
    unknown: NDArray[np.bool_]


class ScoreFile:
    """A file of scores. The header is read immediately. `blocks` reads the rows in one pass."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines = numbered_lines(name)
        _, header = next(self._lines)
        self.format: RowFormat = "jsonl" if header.startswith("{") else "tsv"
        read_header = _object_header if self.format == "jsonl" else _table_header
        self.columns: list[str]
        self.protocol: dict[str, str]
        try:
            self.columns, self.protocol = read_header(header)
        except ValueError as error:
            raise ValueError(f"{shown(name)}: line 1: {error}") from None
        self._score = next((unit for unit in NATS if unit in self.columns), "logprob")
        for column in ("line", "position", "word", self._score):
            if column not in self.columns:
                raise ValueError(
                    f"{shown(name)}: line 1: has no column {column}; use files from zipflm score "
                    "--per word"
                )

    def blocks(self) -> Iterator[ScoreRows]:
        """Yield all rows in blocks. Raises ValueError with the line number for an invalid row."""
        empty = True
        while lines := list(islice(self._lines, _ROWS_PER_BLOCK)):
            empty = False
            yield self._rows(lines)
        if empty:
            raise ValueError(f"{shown(self.name)}: has a header but no rows; score some text")

    def _rows(self, lines: list[tuple[int, str]]) -> ScoreRows:
        keys, values, unknown = [], [], []
        for number, line in lines:
            try:
                row = self._row(line)
                keys.append((int(row["line"]), int(row["position"]), str(row["word"])))
                values.append(float(row[self._score]))
                unknown.append(bool(int(row.get("unknown", 0))))
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"{shown(self.name)}: line {number}: {quoted(line)} is not a row of "
                    f"{', '.join(self.columns)}"
                ) from None
        logprob = np.array(values, dtype=np.float64) * NATS[self._score]
        is_log = np.isfinite(logprob) & (logprob <= _MAX_LOGPROB)
        if not is_log.all():
            index = int(np.argmin(is_log))
            raise ValueError(
                f"{shown(self.name)}: line {lines[index][0]}: {self._score} {values[index]:g} is "
                "not the logarithm of a probability"
            )
        return ScoreRows(lines[0][0], keys, logprob, np.array(unknown, dtype=np.bool_))

    def _row(self, line: str) -> Mapping[str, Any]:
        if self.format == "jsonl":
            return parse_object(line)
        return dict(zip(self.columns, line.split("\t"), strict=True))


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
    """Round to 6 digits. Adding 0.0 turns -0.0 into 0.0."""
    return round(value, 6) + 0.0


_COLUMNS = ("line", "position", "word", "logprob", "unknown")


def write_header(file: Writable, format: RowFormat, protocol: Mapping[str, str]) -> None:
    file.write(f"{header_line(format, _COLUMNS, protocol)}\n")


def write_rows(
    file: Writable,
    format: RowFormat,
    keys: Sequence[tuple[int, int, str]],
    logprob: NDArray[np.float64],
    unknown: NDArray[np.bool_],
) -> None:
    for key, score, is_unknown in zip(keys, logprob.tolist(), unknown.tolist(), strict=True):
        values = (*key, rounded(score), int(is_unknown))
        file.write(f"{row_line(format, dict(zip(_COLUMNS, values, strict=True)))}\n")
