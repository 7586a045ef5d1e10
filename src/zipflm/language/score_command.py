"""`zipflm score`: lines scored while they are read, in bounded memory.

Lines that follow each other are cut as `evaluate` cuts them, so the numbers are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks
from zipflm.data.text import UTF_8, check_encoding, expand, line_groups, shown, stored_size
from zipflm.data.token_file import TokenArray
from zipflm.data.windows import Windows, cut
from zipflm.language.engine import Engine, ScoredDocument, scored_documents
from zipflm.language.files import decoded
from zipflm.language.model import TrainedModel
from zipflm.language.next_words import LikelyWord, most_likely_instead, require_k
from zipflm.language.score_table import ScoredLine, ScoreTable, TableOptions
from zipflm.language.text import EncodedText, Ids, nll_per_word

# Batches that are scored together: enough that the last one, seldom full, does not matter.
_BATCHES = 8


class RunningLines:
    """Takes lines and gives back the nll of each, in order, once the part it ends in is scored."""

    def __init__(self, engine: Engine, blocks: Blocks, prefix: Ids) -> None:
        self._engine, self._blocks = engine, blocks
        self._lengths: list[int] = []
        """Of lines that have not been given back."""
        self._nll = np.zeros(0, dtype=np.float32)
        """Of their tokens, as far as they are scored."""
        self._waiting: deque[Ids] = deque()
        """Tokens that are not, line by line; they begin where a part begins."""
        self._num_waiting = 0
        self._before = prefix
        """The last tokens before those: the context of the next part, and one more."""

    def add(self, ids: Ids) -> Iterator[NDArray[np.float32]]:
        """One line more, with its end; yields what is complete by then."""
        self._lengths.append(len(ids))
        self._waiting.append(ids)
        self._num_waiting += len(ids)
        if self._num_waiting >= _BATCHES * self._engine.batch_tokens:
            yield from self._score(is_all=False)

    def finish(self) -> Iterator[NDArray[np.float32]]:
        """There are no more lines; yields what is left."""
        if self._waiting:
            yield from self._score(is_all=True)

    def _score(self, is_all: bool) -> Iterator[NDArray[np.float32]]:
        blocks = self._blocks
        offsets = np.cumsum([0, *map(len, self._waiting)])
        ids = np.concatenate(list(self._waiting))
        bounds = cut(TokenArray(ids, offsets), blocks.break_mode, blocks.block - blocks.context)
        if not is_all:
            bounds = bounds[:-1]  # more may still join the last part
        num_before, end = len(self._before), int(bounds[-1])
        stream = np.concatenate([self._before, ids[:end]])
        windows = _with_context(num_before + bounds, blocks)
        scored = self._engine.nll_of(stream, windows)[num_before:]
        self._nll = np.concatenate([self._nll, scored])
        self._before = stream[-(blocks.context + 1) :]
        self._forget(end)
        yield from self._complete()

    def _forget(self, number: int) -> None:
        """So many tokens wait no longer."""
        self._num_waiting -= number
        while self._waiting and number >= len(self._waiting[0]):
            number -= len(self._waiting.popleft())
        if number:
            self._waiting[0] = self._waiting[0][number:]

    def _complete(self) -> Iterator[NDArray[np.float32]]:
        ends = np.cumsum(self._lengths)
        number = int(np.searchsorted(ends, len(self._nll), side="right"))
        parts = np.split(self._nll, ends[:number])
        self._lengths, self._nll = self._lengths[number:], parts.pop()
        yield from parts


def _with_context(bounds: NDArray[np.int64], blocks: Blocks) -> Windows:
    """As much context as fits into the block, and as there is."""
    start, end = bounds[:-1], bounds[1:]
    room = np.clip(blocks.block - (end - start), 0, blocks.context)
    return Windows(np.maximum(start - room, 0), start, end)


Lines = Literal["independent", "running"]
Errors = Literal["strict", "replace"]
Progress = Callable[[str, int, int | None], None]


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
    lm: TrainedModel,
    patterns: Sequence[str],
    options: ScoreOptions,
    progress: Progress = lambda what, done, total: None,
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
        file = _File(lm, name, options)
        groups = file.running() if options.lines == "running" else file.independent()
        for lines, consumed in groups:
            yield [row for line in lines for row in table.line(line)]
            progress("scoring", consumed, total)
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
        "precision": lm.engine.precision,
        "ends": "scored" if options.table.ends else "left-out",
        "prefix": len(lm.reader.prefix(options.prefix)),
    }


class _File:
    """One file, or standard input, on its way through the model."""

    def __init__(self, lm: TrainedModel, name: str, options: ScoreOptions) -> None:
        self._lm, self._name, self._options = lm, name, options
        self._prefix = lm.reader.prefix(options.prefix)

    def independent(self) -> Iterator[tuple[list[ScoredLine], int]]:
        """Every line on its own, behind `</s>` and the prefix; many are scored together."""
        number = 1
        for lines, consumed in self._groups():
            encoded = self._encoded(number, lines)
            for documents in scored_documents(self._lm.engine, encoded, self._prefix):
                yield [self._row(number + place, each) for place, each in enumerate(documents)], 0
                number += len(documents)
            yield [], consumed

    def running(self) -> Iterator[tuple[list[ScoredLine], int]]:
        """Every line behind those before it."""
        lm = self._lm
        stream = RunningLines(lm.engine, lm.running_blocks, self._prefix)
        waiting: deque[tuple[int, EncodedText]] = deque()
        number = 1
        for lines, consumed in self._groups():
            done = []
            for line in self._encoded(number, lines):
                waiting.append((number, line))
                number += 1
                done += [self._scored(*waiting.popleft(), nll) for nll in stream.add(line.ids)]
            yield done, consumed
        yield [self._scored(*waiting.popleft(), nll) for nll in stream.finish()], 0

    def _groups(self) -> Iterator[tuple[list[bytes], int]]:
        """Lines, as many as are there, and the bytes they took as stored."""
        options = self._options
        return line_groups(self._name, encoding=options.encoding, errors=options.errors)

    def _encoded(self, first: int, lines: list[bytes]) -> Iterator[EncodedText]:
        """Lines as words, one by one; `first` is the number of the first."""
        for place, line in enumerate(lines):
            yield self._lm.reader.line(self._text(first + place, line))

    def _text(self, number: int, line: bytes) -> str:
        if self._options.errors == "replace":
            return line.decode("utf-8", "replace").replace("\0", "\ufffd")
        try:
            return decoded(self._name, number, line)
        except ValueError as error:
            raise ValueError(f"{error}, or go on with --errors replace") from None

    def _scored(
        self,
        number: int,
        line: EncodedText,
        nll: NDArray[np.float32],
        top: list[list[LikelyWord]] | None = None,
    ) -> ScoredLine:
        name = shown(self._name)
        return ScoredLine(name, number, line, nll_per_word(line, nll), top)

    def _row(self, number: int, document: ScoredDocument) -> ScoredLine:
        top = self._top(document) if self._options.top else None
        return self._scored(number, document.text, document.nll, top)

    def _top(self, document: ScoredDocument) -> list[list[LikelyWord]]:
        """Per word, what the model would have put in its place."""
        lm, skip = self._lm, len(self._prefix)
        places, k = skip + document.text.starts, self._options.top
        return most_likely_instead(lm.engine, lm.reader, document.ids, places, k, skip)
