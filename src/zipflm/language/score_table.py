"""Tables of scores: the rows that `zipflm score` prints, and files of `--per word`.

Files are read and written in blocks of rows, so any length fits in memory. A file is a table with
tabs, whose header ends in `# key=value ...`, or JSON lines, of which the first has `columns` and
`protocol`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from zipflm.data.text import shown
from zipflm.data.vocabulary import END
from zipflm.language.files import Writable, numbered_lines
from zipflm.language.nbest import parsed_object
from zipflm.language.next_words import LikelyWord
from zipflm.language.text import EncodedText, WordFacts, scored_words
from zipflm.messages import quoted
from zipflm.units import NATS, perplexity

_KEY = ("line", "position", "word")
_ROWS = 16_384
_LARGEST = 1e-6
"""A log-probability of 0 may have been rounded to a little more."""

RowFormat = Literal["tsv", "jsonl"]


@dataclass(frozen=True)
class ScoreRows:
    """Some rows that follow each other."""

    first_line: int
    """The line of the file that the first row is on."""
    keys: list[tuple[int, int, str]]
    """Line and position in the text, and the word."""
    logprob: NDArray[np.float64]
    """In nats."""
    unknown: NDArray[np.bool_]


class ScoreFile:
    """One file: its header is read at once, its rows when they are asked for, in one pass."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines = numbered_lines(name)
        _, header = next(self._lines)
        self.format: RowFormat = "jsonl" if header.startswith("{") else "tsv"
        self.columns: list[str]
        self.protocol: dict[str, str]
        try:
            self.columns, self.protocol = _HEADERS[self.format](header)
            self._check_columns()
        except ValueError as error:
            raise ValueError(f"{shown(name)}: line 1: {error}") from None

    def _check_columns(self) -> None:
        missing = [name for name in _KEY if name not in self.columns]
        if not NATS.keys() & set(self.columns):
            missing.append("logprob")
        if missing:
            raise ValueError(
                f"has no column {missing[0]}; give files that zipflm score --per word has written"
            )
        self._score = next(name for name in NATS if name in self.columns)

    def blocks(self) -> Iterator[ScoreRows]:
        """All rows. Raises ValueError, naming the line, for what is not a row."""
        empty = True
        while lines := list(islice(self._lines, _ROWS)):
            empty = False
            yield self._rows(lines)
        if empty:
            raise ValueError(f"{shown(self.name)}: has a header and no rows")

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
                    f"{shown(self.name)}: line {number}: {quoted(line)} is no row of "
                    f"{', '.join(self.columns)}"
                ) from None
        logprob = np.array(values, dtype=np.float64) * NATS[self._score]
        is_log = np.isfinite(logprob) & (logprob <= _LARGEST)
        if not is_log.all():
            place = int(np.argmin(is_log))
            raise ValueError(
                f"{shown(self.name)}: line {lines[place][0]}: {self._score} {values[place]:g} is "
                "not that of a probability"
            )
        return ScoreRows(lines[0][0], keys, logprob, np.array(unknown, dtype=np.bool_))

    def _row(self, line: str) -> Mapping[str, Any]:
        if self.format == "jsonl":
            return parsed_object(line)
        fields = line.split("\t")
        return dict(zip(self.columns, fields, strict=True))


def _table_header(line: str) -> tuple[list[str], dict[str, str]]:
    columns = line.split("\t")
    if not columns[-1].startswith("#"):
        return columns, {}
    protocol: dict[str, str] = {}
    for part in columns.pop().removeprefix("#").split():
        key, equals, value = part.partition("=")
        if equals:
            protocol[key] = unquote(value)  # no value has a space in it
    return columns, protocol


def _object_header(line: str) -> tuple[list[str], dict[str, str]]:
    header = parsed_object(line)
    columns, protocol = header.get("columns"), header.get("protocol", {})
    if not isinstance(columns, list) or not isinstance(protocol, dict):
        raise ValueError('is not {"protocol": {...}, "columns": [...]}')
    return [str(name) for name in columns], {key: str(value) for key, value in protocol.items()}


_HEADERS = {"tsv": _table_header, "jsonl": _object_header}


_WRITTEN = ("line", "position", "word", "logprob", "unknown")


def header_line(
    format: RowFormat, columns: Sequence[str], protocol: Mapping[str, str | int]
) -> str:
    """The first line of a file: what its columns are, and how its numbers came about."""
    if format == "jsonl":
        return json.dumps({"protocol": protocol, "columns": columns}, ensure_ascii=False)
    pairs = " ".join(f"{key}={quote(str(value), '/:+,')}" for key, value in protocol.items())
    return "\t".join([*columns, f"# {pairs}"])


def write_header(file: Writable, format: RowFormat, protocol: Mapping[str, str]) -> None:
    """The first line of a file with line, position, word, logprob and unknown."""
    file.write(f"{header_line(format, _WRITTEN, protocol)}\n")


def write_rows(
    file: Writable,
    format: RowFormat,
    keys: Sequence[tuple[int, int, str]],
    logprob: NDArray[np.float64],
    unknown: NDArray[np.bool_],
) -> None:
    """Rows behind that header."""
    columns = zip(keys, logprob.tolist(), unknown.tolist(), strict=True)
    for (line, position, word), score, is_unknown in columns:
        if format == "jsonl":
            values = (line, position, word, round(score, 6), int(is_unknown))
            row = json.dumps(dict(zip(_WRITTEN, values, strict=True)), ensure_ascii=False)
        else:
            row = f"{line}\t{position}\t{word}\t{score:.6f}\t{int(is_unknown):d}"
        file.write(f"{row}\n")


Per = Literal["word", "line", "document", "total"]
Format = Literal["tsv", "jsonl", "surprisal"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What the rows are about, and how they are written."""

    per: Per = "word"
    format: Format = "tsv"
    bits: bool = False
    """-log2 p instead of the natural logarithm."""
    log10: bool = False
    """The logarithm to base 10 instead, as KenLM has it."""
    ends: bool = True
    """Line ends have rows of their own, and count."""
    names_files: bool = False
    """Rows tell which file they are of."""

    def __post_init__(self) -> None:
        for option, value, choices in (("per", self.per, Per), ("format", self.format, Format)):
            if value not in get_args(choices):
                choice = ", ".join(get_args(choices))
                raise ValueError(f"--{option} {value}: choose from {choice}")
        if self.log10 and (self.bits or self.format == "surprisal"):
            other = "--bits" if self.bits else "--format surprisal"
            raise ValueError(f"--log10: {other} has another unit; leave out one")
        if self.format == "surprisal" and self.per != "word":
            raise ValueError(f"--format surprisal: has a row per word, not --per {self.per}")


@dataclass(frozen=True)
class ScoredLine:
    """One line of a file."""

    file: str
    number: int
    """From 1 in its file."""
    encoded: EncodedText
    nll: NDArray[np.float64]
    """Per word, in nats."""
    top: Sequence[Sequence[LikelyWord]] | None = None
    """Per word, what the model thought most likely instead, where that was asked for."""


@dataclass
class _Totals:
    """Sums over lines."""

    lines: int = 0
    words: int = 0
    unknown: int = 0
    nll: float = 0.0

    def add(self, other: _Totals) -> None:
        self.lines += other.lines
        self.words += other.words
        self.unknown += other.unknown
        self.nll += other.nll


class ScoreTable:
    """Turns scored lines into rows of text, in their order."""

    def __init__(
        self, options: TableOptions, facts: WordFacts, protocol: Mapping[str, str | int]
    ) -> None:
        self._options, self._facts, self._protocol = options, facts, protocol
        self._document, self._all = _Totals(), _Totals()

    def header(self, has_top: bool = False) -> str:
        columns = self._columns(has_top)
        if self._options.format == "surprisal":
            return "\t".join(columns)
        return header_line(self._options.format, columns, self._protocol)

    def line(self, line: ScoredLine) -> Iterator[str]:
        """The rows that a line brings: one, one per word, or none."""
        if self._options.per == "word":
            yield from self._words(line)
            return
        totals = self._totals(line)
        self._document.add(totals)
        if self._options.per == "line":
            yield self._row({"line": line.number} | self._sums(totals) | self._file(line.file))

    def end_of_document(self, file: str) -> Iterator[str]:
        if self._options.per == "document":
            sums = {"lines": self._document.lines} | self._sums(self._document)
            yield self._row({"document": file} | sums)
        self._all.add(self._document)
        self._document = _Totals()

    def end(self) -> Iterator[str]:
        if self._options.per == "total":
            yield self._row({"lines": self._all.lines} | self._sums(self._all))

    @property
    def _score(self) -> str:
        return "bits" if self._options.bits else "log10" if self._options.log10 else "logprob"

    def _columns(self, has_top: bool) -> list[str]:
        if self._options.format == "surprisal":
            return ["sentence", "position", "word", "surprisal"]
        sums = ["words", "unknown", self._score, "perplexity"]
        file = ["file"] if self._options.names_files else []
        match self._options.per:
            case "word":
                top = ["top"] if has_top else []
                word = ["line", "position", "word", self._score, "band", "count", "unknown"]
                return [*word, *top, *file]
            case "line":
                return ["line", *sums, *file]
            case "document":
                return ["document", "lines", *sums]
            case "total":
                return ["lines", *sums]

    def _words(self, line: ScoredLine) -> Iterator[str]:
        words = scored_words(line.encoded, line.nll, self._facts)
        for place, word in enumerate(words):
            if word.is_end and not self._options.ends:
                continue
            if self._options.format == "surprisal":
                surprisal = f"{word.surprisal:.6f}"
                yield "\t".join([str(line.number), str(place + 1), word.word, surprisal])
                continue
            row = {
                "line": line.number,
                "position": place + 1,
                "word": word.word,
                self._score: self._in_unit(word.logprob),
                "band": word.band,
                "count": word.count,
                "unknown": word.is_unknown,
            }
            if line.top is not None:
                row["top"] = [(each.word, self._in_unit(each.logprob)) for each in line.top[place]]
            yield self._row(row | self._file(line.file))

    def _totals(self, line: ScoredLine) -> _Totals:
        first = line.encoded.ids[line.encoded.starts]
        counted = np.ones(len(first), dtype=np.bool_) if self._options.ends else first != END
        return _Totals(
            lines=1,
            words=int(counted.sum()),
            unknown=int(np.count_nonzero(line.encoded.is_unknown)),
            nll=float(line.nll[counted].sum()),
        )

    def _sums(self, totals: _Totals) -> dict[str, Any]:
        per_word = perplexity(totals.nll / totals.words) if totals.words else math.inf
        return {
            "words": totals.words,
            "unknown": totals.unknown,
            self._score: self._in_unit(-totals.nll),
            # None, which is no number, where there is no word or it is beyond all numbers.
            "perplexity": per_word if per_word < math.inf else None,
        }

    def _file(self, file: str) -> dict[str, Any]:
        return {"file": file} if self._options.names_files else {}

    def _in_unit(self, logprob: float) -> float:
        # Plus 0, because certainty is not -0.
        return round(logprob / NATS[self._score], 6) + 0.0

    def _row(self, row: Mapping[str, Any]) -> str:
        if self._options.format == "jsonl":
            return _json(row)
        return "\t".join(map(_field, row.values()))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _field(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(int(value))
        case float():
            return f"{value:.6f}"
        case list():  # alternatives; no word holds a space
            return " ".join(f"{word}={score:.6f}" for word, score in value)
        case _:
            return str(value)
