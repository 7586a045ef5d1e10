"""Scores as rows: one per word, line, document or for everything; for people and for programs.

TSV has one header line: the columns' names, then a field that begins with `#` and holds the
protocol, which no row has. JSON lines begin with an object of the same. `surprisal` is what
psycholinguists' scripts read: sentence, position, word, surprisal in bits, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import END
from zipflm.language.next_words import LikelyWord
from zipflm.language.score_files import header_line
from zipflm.language.scored import WordFacts, scored_words
from zipflm.language.texts import EncodedText
from zipflm.units import NATS, perplexity

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
