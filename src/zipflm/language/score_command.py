"""`zipflm score`: score lines as they are read, in bounded memory, and format them as rows.

With `--lines running`, the lines of a file are scored as one text, split into blocks as in
`zipflm evaluate`, so both commands give the same numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zipflm.config.checks import Checked
from zipflm.data.scan import Errors
from zipflm.data.text import UTF_8, check_encoding, line_groups, shown, stored_size
from zipflm.data.vocabulary import END
from zipflm.data.windows import require_short_lines
from zipflm.evaluation.progress import report_progress
from zipflm.language.engine import ScoredDocument, scored_documents, scored_lines
from zipflm.language.files import decode_line
from zipflm.language.model import TrainedModel
from zipflm.language.next_words import LikelyWord, most_likely_words_at, require_k
from zipflm.language.score_table import header_line, rounded, row_line
from zipflm.language.text import EncodedText, Ids, WordStatistics, nll_per_word, scored_words
from zipflm.units import NATS, perplexity

Per = Literal["word", "line", "document", "total"]
Lines = Literal["independent", "running"]


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Checked):
    """Options of `zipflm score`."""

    per: Per = "word"
    json: bool = False
    """Format rows as JSON instead of tab-separated columns."""
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
        if self.log10 and self.bits:
            raise ValueError("--log10: cannot be combined with --bits; use one of them")
        check_encoding(self.encoding)
        if self.top < 0:
            raise ValueError(f"--top {self.top}: must be 0 (none) or more")
        if self.top and (self.per != "word" or self.lines == "running"):
            raise ValueError("--top: needs --per word and --lines independent")

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
        lines = _short_lines(lm, chain.from_iterable(groups), shown(name))
        return scored_lines(lm.engine, lines, prefix, lm.running_blocks)
    # Yield the scores of available lines before waiting for more input.
    top = 0 if lm.engine.unit == "bpe" else options.top
    return chain.from_iterable(scored_documents(lm.engine, lines, prefix, top) for lines in groups)


def _short_lines(
    lm: TrainedModel, lines: Iterator[EncodedText], name: str
) -> Iterator[EncodedText]:
    blocks, decoder = lm.running_blocks, lm.model.config.decoder
    for line in lines:
        remedy = "use --lines independent"
        require_short_lines(len(line.ids), blocks, decoder, name, remedy, "--block")
        yield line


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
        self._totals = _Totals()
        """Since the last row of sums."""
        sums = ["words", "unknown", options.score, "perplexity"]
        self._columns = {
            "word": ["line", "position", "word", options.score, "band", "count", "unknown"],
            "line": ["line", *sums],
            "document": ["document", "lines", *sums],
            "total": ["lines", *sums],
        }[options.per]
        if options.top:
            self._columns.append("top")
        self._has_file_column = has_file_column and options.per in ("word", "line")
        if self._has_file_column:
            self._columns.append("file")

    def header(self, protocol: Mapping[str, str | int]) -> str:
        if self._options.json:
            header = {"protocol": protocol, "columns": self._columns}
            return json.dumps(header, ensure_ascii=False)
        return header_line(self._columns, protocol)

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
        ending = (file,) if self._has_file_column else ()
        if self._options.per == "word":
            for values in self._words(text, nll, top):
                yield self._row(number, *values, *ending)
            return
        if not self._options.ends:
            nll = nll[text.ids[text.starts] != END]
        self._totals.lines += 1
        self._totals.words += len(nll)
        self._totals.unknown += int(np.count_nonzero(text.is_unknown))
        self._totals.nll += float(nll.sum())
        if self._options.per == "line":
            yield self._row(number, *self._sums(), *ending)

    def end_of_document(self, file: str) -> Iterator[str]:
        if self._options.per == "document":
            yield self._row(file, self._totals.lines, *self._sums())

    def end(self) -> Iterator[str]:
        if self._options.per == "total":
            yield self._row(self._totals.lines, *self._sums())

    def _words(
        self,
        text: EncodedText,
        nll: NDArray[np.float64],
        top: Sequence[Sequence[LikelyWord]] | None,
    ) -> Iterator[list[Any]]:
        for index, word in enumerate(scored_words(text, nll, self._statistics)):
            if word.is_end and not self._options.ends:
                continue
            score = self._in_unit(word.logprob)
            values = [index + 1, word.word, score, word.band, word.count, word.is_unknown]
            if top is not None:
                values.append([(word, self._in_unit(logprob)) for word, logprob in top[index]])
            yield values

    def _sums(self) -> list[Any]:
        """Return the sums since the previous call."""
        totals, self._totals = self._totals, _Totals()
        per_word = perplexity(totals.nll / totals.words) if totals.words else math.inf
        # None if there are no words or the value overflows.
        last = per_word if per_word < math.inf else None
        return [totals.words, totals.unknown, self._in_unit(-totals.nll), last]

    def _in_unit(self, logprob: float) -> float:
        return rounded(logprob / NATS[self._options.score])

    def _row(self, *values: Any) -> str:
        if self._options.json:
            row = dict(zip(self._columns, values, strict=True))
            return json.dumps(row, ensure_ascii=False, allow_nan=False)
        return row_line(values)
