"""`zipflm score`: score lines as they are read, in bounded memory, and format them as rows.

With `--lines running`, the lines of a file are scored as one text, split into blocks as in
`zipflm evaluate`, so both commands give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zipflm.config.checks import Checked
from zipflm.data.text import UTF_8, check_encoding, line_groups, shown, stored_size
from zipflm.data.vocabulary import END
from zipflm.evaluation.progress import report_progress
from zipflm.language.engine import ScoredDocument, scored_documents, scored_lines
from zipflm.language.files import decode_line
from zipflm.language.model import TrainedModel
from zipflm.language.next_words import LikelyWord, most_likely_words_at, require_k
from zipflm.language.score_table import RowFormat, header_line, rounded, row_line
from zipflm.language.text import EncodedText, Ids, WordStatistics, nll_per_word, scored_words
from zipflm.units import NATS, perplexity

Per = Literal["word", "line", "document", "total"]
Format = Literal["tsv", "jsonl", "surprisal"]
Lines = Literal["independent", "running"]
Errors = Literal["strict", "replace"]


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Checked):
    """Options of `zipflm score`."""

    per: Per = "word"
    format: Format = "tsv"
    bits: bool = False
    """Write -log2 p instead of ln p."""
    log10: bool = False
    """Write log10 p instead of ln p, as KenLM does."""
    ends: bool = True
    """Write rows for line ends, and include them in sums."""
    lines: Lines = "independent"
    """Score each line by itself, or all lines of a file as one running text."""
    prefix: str = ""
    """Context before every line, or before every file with `running`."""
    top: int = 0
    """Number of most likely words to list for each position."""
    errors: Errors = "strict"
    """Fail at invalid bytes, or replace them."""
    encoding: str = UTF_8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log10 and (self.bits or self.format == "surprisal"):
            other = "--bits" if self.bits else "--format surprisal"
            raise ValueError(f"--log10: cannot be combined with {other}; use one of them")
        if self.format == "surprisal" and self.per != "word":
            raise ValueError(f"--format surprisal: needs --per word, not {self.per}")
        check_encoding(self.encoding)
        if self.top < 0:
            raise ValueError(f"--top {self.top}: must be 0 (none) or more")
        if self.top and (self.per != "word" or self.format == "surprisal"):
            raise ValueError("--top: needs --per word, and --format tsv or --json")
        if self.top and self.lines == "running":
            raise ValueError("--top: cannot be combined with --lines running; leave out one")

    @property
    def score(self) -> str:
        """Name of the score column, which also identifies its unit."""
        return "bits" if self.bits else "log10" if self.log10 else "logprob"


def score_files(
    lm: TrainedModel, names: Sequence[str], options: ScoreOptions
) -> Iterator[list[str]]:
    """Yield groups of rows: the header, the rows of each file, and the total if requested.

    `-` is standard input.
    """
    if options.top:
        require_k(options.top, lm.reader, "top")
    table = ScoreTable(options, lm.statistics, has_file_column=len(names) > 1)
    yield [table.header(_protocol(lm, options))]
    total, prefix = stored_size(names), lm.reader.prefix(options.prefix)
    for name in names:
        number = count(1)
        for documents in _scored_file(lm, name, prefix, options, total):
            yield [
                row
                for document in documents
                for row in table.line(
                    shown(name),
                    next(number),
                    document.text,
                    nll_per_word(document.text, document.nll),
                    _top(lm, document, prefix, options.top) if options.top else None,
                )
            ]
        yield [*table.end_of_document(shown(name))]
    yield [*table.end()]


def _protocol(lm: TrainedModel, options: ScoreOptions) -> dict[str, str | int]:
    blocks = lm.running_blocks if options.lines == "running" else lm.engine.blocks
    memories = lm.engine.memories
    protocol: dict[str, str | int] = {
        "run": str(lm.run),
        "checkpoint": lm.run.checkpoint.name,
        "unit": lm.engine.unit,
        "lines": options.lines,
        "break": blocks.break_mode,
        "block": blocks.block,
        "context": blocks.context,
        "dtype": lm.engine.dtype_name,
        "ends": "scored" if options.ends else "left-out",
        "prefix": len(lm.reader.prefix(options.prefix)),
    }
    return protocol if memories is None else protocol | {"memory": "+".join(memories.names)}


def _scored_file(
    lm: TrainedModel, name: str, prefix: Ids, options: ScoreOptions, total: int | None
) -> Iterator[list[ScoredDocument]]:
    """Score the lines of a file or standard input. `total` is the size of all files in bytes, for
    the progress bar."""
    groups = _encoded(lm, name, options, total)
    if options.lines == "running":
        lines = chain.from_iterable(groups)
        return scored_lines(lm.engine, lines, prefix, lm.running_blocks)
    # Yield the scores of available lines before waiting for more input.
    top = 0 if lm.engine.unit == "bpe" else options.top
    return chain.from_iterable(scored_documents(lm.engine, lines, prefix, top) for lines in groups)


def _encoded(
    lm: TrainedModel, name: str, options: ScoreOptions, total: int | None
) -> Iterator[Iterator[EncodedText]]:
    """Yield the lines of a file in groups, as they become available."""
    number = count(1)

    def text(line: bytes) -> str:
        if options.errors == "replace":
            return line.decode("utf-8", "replace").replace("\0", "\ufffd")
        return decode_line(name, next(number), line, ", or use --encoding or --errors replace")

    def encoded(lines: list[bytes], consumed: int) -> Iterator[EncodedText]:
        for line in lines:
            yield lm.reader.line(text(line))
        report_progress(consumed, total)

    for lines, consumed in line_groups(name, encoding=options.encoding, errors=options.errors):
        yield encoded(lines, consumed)


def _top(
    lm: TrainedModel, document: ScoredDocument, prefix: Ids, top: int
) -> list[list[LikelyWord]]:
    """Return the most likely words at the position of each word."""
    text, skip = document.text, len(prefix)
    if lm.engine.unit == "bpe":
        ids, positions = np.concatenate([prefix, text.ids]), skip + text.starts
        return most_likely_words_at(lm.engine, lm.reader, ids, positions, top, skip)
    words = lm.vocabulary.words
    return [[LikelyWord(words[i], value) for i, value in likely] for likely in document.top]


@dataclass
class _Totals:
    lines: int = 0
    words: int = 0
    unknown: int = 0
    nll: float = 0.0


class ScoreTable:
    """Formats scored lines as rows of text."""

    def __init__(
        self, options: ScoreOptions, statistics: WordStatistics, *, has_file_column: bool
    ) -> None:
        """`has_file_column` adds a column with the file name to rows of words and lines."""
        self._options, self._statistics = options, statistics
        self._has_file_column = has_file_column and options.format != "surprisal"
        self._totals = _Totals()
        """Since the last row of sums."""
        self._format: RowFormat = "jsonl" if options.format == "jsonl" else "tsv"

    def header(self, protocol: Mapping[str, str | int]) -> str:
        if self._options.format == "surprisal":
            return "\t".join(["sentence", "position", "word", "surprisal"])
        score = self._options.score
        sums = ["words", "unknown", score, "perplexity"]
        columns = {
            "word": ["line", "position", "word", score, "band", "count", "unknown"],
            "line": ["line", *sums],
            "document": ["document", "lines", *sums],
            "total": ["lines", *sums],
        }[self._options.per]
        if self._options.top:
            columns.append("top")
        if self._has_file_column and self._options.per in ("word", "line"):
            columns.append("file")
        return header_line(self._format, columns, protocol)

    def line(
        self,
        file: str,
        number: int,
        text: EncodedText,
        nll: NDArray[np.float64],
        top: Sequence[Sequence[LikelyWord]] | None = None,
    ) -> Iterator[str]:
        """Yield the rows of a line. `nll` and `top` (the most likely words) have one item per
        word."""
        if self._options.per == "word":
            for row in self._words(number, text, nll, top):
                yield self._row(row, file)
            return
        if not self._options.ends:
            nll = nll[text.ids[text.starts] != END]
        self._totals.lines += 1
        self._totals.words += len(nll)
        self._totals.unknown += int(np.count_nonzero(text.is_unknown))
        self._totals.nll += float(nll.sum())
        if self._options.per == "line":
            yield self._row({"line": number} | self._sums(), file)

    def end_of_document(self, file: str) -> Iterator[str]:
        if self._options.per == "document":
            yield self._row({"document": file, "lines": self._totals.lines} | self._sums())

    def end(self) -> Iterator[str]:
        if self._options.per == "total":
            yield self._row({"lines": self._totals.lines} | self._sums())

    def _words(
        self,
        number: int,
        text: EncodedText,
        nll: NDArray[np.float64],
        top: Sequence[Sequence[LikelyWord]] | None,
    ) -> Iterator[dict[str, Any]]:
        for index, word in enumerate(scored_words(text, nll, self._statistics)):
            if word.is_end and not self._options.ends:
                continue
            row: dict[str, Any] = {"line": number, "position": index + 1, "word": word.word}
            if self._options.format == "surprisal":
                yield row | {"surprisal": word.surprisal}
                continue
            row[self._options.score] = self._in_unit(word.logprob)
            row |= {"band": word.band, "count": word.count, "unknown": word.is_unknown}
            if top is not None:
                row["top"] = [(word, self._in_unit(logprob)) for word, logprob in top[index]]
            yield row

    def _sums(self) -> dict[str, Any]:
        """Return the sums since the previous call."""
        totals, self._totals = self._totals, _Totals()
        per_word = perplexity(totals.nll / totals.words) if totals.words else math.inf
        return {
            "words": totals.words,
            "unknown": totals.unknown,
            self._options.score: self._in_unit(-totals.nll),
            # None if there are no words or the value overflows.
            "perplexity": per_word if per_word < math.inf else None,
        }

    def _in_unit(self, logprob: float) -> float:
        return rounded(logprob / NATS[self._options.score])

    def _row(self, row: Mapping[str, Any], file: str | None = None) -> str:
        named = {"file": file} if self._has_file_column and file is not None else {}
        return row_line(self._format, {**row, **named})
