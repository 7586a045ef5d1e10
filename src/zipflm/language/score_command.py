"""`zipflm score`: lines scored while they are read, in bounded memory.

Lines that follow each other are cut as `evaluate` cuts them, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Literal, get_args

import numpy as np

from zipflm.data.text import UTF_8, check_encoding, expand, line_groups, shown, stored_size
from zipflm.evaluation.scoring import tell
from zipflm.language.engine import ScoredDocument, scored_documents, scored_lines
from zipflm.language.files import decoded
from zipflm.language.model import TrainedModel
from zipflm.language.next_words import LikelyWord, most_likely_instead, require_k
from zipflm.language.score_table import ScoredLine, ScoreTable, TableOptions
from zipflm.language.text import EncodedText, nll_per_word

Lines = Literal["independent", "running"]
Errors = Literal["strict", "replace"]


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What `zipflm score` was asked for."""

    table: TableOptions = field(default_factory=TableOptions)
    lines: Lines = "independent"
    """Whether a line knows those before it."""
    prefix: str = ""
    top: int = 0
    errors: Errors = "strict"
    encoding: str = UTF_8
    """Of the texts."""

    def __post_init__(self) -> None:
        for option, value, choices in (
            ("lines", self.lines, Lines),
            ("errors", self.errors, Errors),
        ):
            if value not in get_args(choices):
                raise ValueError(f"--{option} {value}: choose from {', '.join(get_args(choices))}")
        check_encoding(self.encoding)
        if self.top < 0:
            raise ValueError(f"--top {self.top}: must be 0 (none) or more")
        if self.top and (self.table.per != "word" or self.table.format == "surprisal"):
            raise ValueError("--top: belongs to the rows of words, in the formats tsv and jsonl")
        if self.top and self.lines == "running":
            raise ValueError("--top: of lines on their own; leave out --lines running")


def score_files(
    lm: TrainedModel, patterns: Sequence[str], options: ScoreOptions
) -> Iterator[list[str]]:
    """Rows, a group at a time: the header first, then those of every file in turn."""
    names = expand(patterns)
    if options.top:
        require_k(options.top, lm.reader, "top")
    protocol = _protocol(lm, options)
    table = ScoreTable(options.table, lm.facts, protocol)
    yield [table.header(has_top=options.top > 0)]
    total = stored_size(names)
    for name in names:
        for lines in _File(lm, name, options, total).scored():
            yield [row for line in lines for row in table.line(line)]
        yield [*table.end_of_document(shown(name))]
    yield [*table.end()]


def _protocol(lm: TrainedModel, options: ScoreOptions) -> dict[str, str | int]:
    blocks = lm.running_blocks if options.lines == "running" else lm.engine.blocks
    return {
        "run": str(lm.run),
        "checkpoint": lm.run.checkpoint.name,
        "unit": lm.engine.unit,
        "lines": options.lines,
        "break": blocks.break_mode,
        "block": blocks.block,
        "context": blocks.context,
        "dtype": lm.engine.dtype_name,
        "ends": "scored" if options.table.ends else "left-out",
        "prefix": len(lm.reader.prefix(options.prefix)),
    }


class _File:
    """One file, or standard input, on its way through the model."""

    def __init__(
        self, lm: TrainedModel, name: str, options: ScoreOptions, total: int | None
    ) -> None:
        """`total` is the stored size of all files, for those who watch."""
        self._lm, self._name, self._options, self._total = lm, name, options, total
        self._prefix = lm.reader.prefix(options.prefix)
        self._searches = lm.engine.unit == "bpe"

    def scored(self) -> Iterator[list[ScoredLine]]:
        """Lines as they are scored: each behind those before it, or behind the prefix alone."""
        lm, prefix, groups = self._lm, self._prefix, self._groups()
        if self._options.lines == "running":
            lines = chain.from_iterable(groups)
            found = scored_lines(lm.engine, lines, prefix, lm.running_blocks)
        else:
            # What is there is given out before more is waited for.
            top = 0 if self._searches else self._options.top
            found = chain.from_iterable(
                scored_documents(lm.engine, lines, prefix, top) for lines in groups
            )
        number = count(1)
        for documents in found:
            yield [self._line(next(number), document) for document in documents]

    def _groups(self) -> Iterator[Iterator[EncodedText]]:
        """Lines, as many as are there, as words."""
        options, first = self._options, 1
        for lines, consumed in line_groups(
            self._name, encoding=options.encoding, errors=options.errors
        ):
            yield self._encoded(first, lines, consumed)
            first += len(lines)

    def _encoded(self, first: int, lines: list[bytes], consumed: int) -> Iterator[EncodedText]:
        """One by one; `first` is the number of the first, and they took so many bytes."""
        for place, line in enumerate(lines):
            yield self._lm.reader.line(self._text(first + place, line))
        tell(consumed, self._total)

    def _text(self, number: int, line: bytes) -> str:
        if self._options.errors == "replace":
            return line.decode("utf-8", "replace").replace("\0", "\ufffd")
        try:
            return decoded(self._name, number, line)
        except ValueError as error:
            raise ValueError(f"{error}, or go on with --errors replace") from None

    def _line(self, number: int, document: ScoredDocument) -> ScoredLine:
        text = document.text
        top = self._top(document) if self._options.top else None
        return ScoredLine(shown(self._name), number, text, nll_per_word(text, document.nll), top)

    def _top(self, document: ScoredDocument) -> list[list[LikelyWord]]:
        """Per word, what the model would have put in its place."""
        lm, text, skip = self._lm, document.text, len(self._prefix)
        if self._searches:
            ids, places = np.concatenate([self._prefix, text.ids]), skip + text.starts
            return most_likely_instead(lm.engine, lm.reader, ids, places, self._options.top, skip)
        words = lm.vocabulary.words
        return [[LikelyWord(words[i], value) for i, value in likely] for likely in document.top]
