"""Text as people have it, as ids: words with their places, line ends included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Unit
from zipflm.data.lines import EncodedWord, TextEncoder
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN

Ids = NDArray[np.int64]

# As `prepare` reads lines: three kinds of line ends, and no others that Unicode knows.
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


@dataclass(frozen=True)
class EncodedText:
    """The words of a text in order; every line, the last one too, ends in `</s>`."""

    text: str
    words: Sequence[str]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where the ids of each word begin."""
    spans: Sequence[tuple[int, int]]
    """Where each word stands in the text."""

    @cached_property
    def line_ends(self) -> NDArray[np.int64]:
        """Positions among the words of those that end a line."""
        return np.flatnonzero(self.ids[self.starts] == END)

    @cached_property
    def is_unknown(self) -> NDArray[np.bool_]:
        """Per word, whether it is read as `<unk>`, or a piece of it is."""
        return np.logical_or.reduceat(self.ids == UNKNOWN, self.starts)


class TextReader:
    """Encodes raw text as the training text of one run was encoded."""

    def __init__(self, encoder: TextEncoder, unit: Unit) -> None:
        self.encoder, self.vocabulary = encoder, encoder.vocabulary
        self.ends_word: NDArray[np.bool_] = (
            self.vocabulary.ends_word
            if unit == "bpe"
            else np.ones(len(self.vocabulary), dtype=np.bool_)
        )
        """Per id, False for a piece that the next one continues."""
        # A model of sub-words that came without codes reads text that is in pieces already.
        self._takes_pieces = unit == "bpe" and encoder.codes is None

    def text(self, text: str, *, ends: bool = True) -> EncodedText:
        """The words of a text, one line or many; ValueError if it is empty or no text.

        Without `ends` the last line has no end: something is to follow it.
        """
        if not text:
            raise ValueError("text='': empty; give at least one word or line")
        if (nul := text.find("\0")) >= 0:
            raise ValueError(f"text: a NUL at character {nul}; give text, not bytes of other kinds")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a pair that UTF-16 has
            raise ValueError(f"text: character {error.start} is no character of a text") from None
        words: list[EncodedWord] = []
        for begin, line, end in _lines(text):
            words += self._words(line, begin)
            if ends or end > begin + len(line):
                words.append(_line_end(begin + len(line), end))
        return _encoded(text, words)

    def line(self, line: str) -> EncodedText:
        """The words of one line, which has no line end in it, and its end."""
        return _encoded(line, [*self._words(line, 0), _line_end(len(line), len(line))])

    def prefix(self, prefix: str) -> Ids:
        """The ids of a text, which may be empty, that something follows."""
        return self.text(prefix, ends=False).ids if prefix else np.zeros(0, dtype=np.int64)

    def is_spelt(self, word: str, ids: tuple[int, ...]) -> bool:
        """Whether a word would be read as these pieces, of the many that it may be spelt in."""
        return self._takes_pieces or self.encoder.ids([word])[0] == ids

    def _words(self, line: str, offset: int) -> list[EncodedWord]:
        words = self.encoder.line(line)
        if self._takes_pieces:
            words = _joined(words)
        if offset:
            words = [
                EncodedWord(word, (offset + start, offset + end), ids)
                for word, (start, end), ids in words
            ]
        return words


def _line_end(start: int, end: int) -> EncodedWord:
    return EncodedWord(SPECIALS[END], (start, end), (END,))


def _joined(pieces: list[EncodedWord]) -> list[EncodedWord]:
    """The words that pieces make up; the last may be incomplete."""
    words: list[EncodedWord] = []
    is_open = False
    for piece in pieces:
        if is_open:
            before = words.pop()
            word = before.word.removesuffix(CONTINUES) + piece.word
            span = (before.span[0], piece.span[1])
            piece = EncodedWord(word, span, before.ids + piece.ids)
        words.append(piece)
        is_open = piece.word.endswith(CONTINUES)
    return words


def _encoded(text: str, words: list[EncodedWord]) -> EncodedText:
    lengths = np.fromiter((len(word.ids) for word in words), np.int64, len(words))
    return EncodedText(
        text,
        [word.word for word in words],
        np.fromiter(chain.from_iterable(word.ids for word in words), np.int64, lengths.sum()),
        np.cumsum(lengths) - lengths,
        [word.span for word in words],
    )


def _lines(text: str) -> Iterator[tuple[int, str, int]]:
    """Where each line begins, what is in it, and where its line end ends."""
    start = 1 if text.startswith("\ufeff") else 0
    for match in _LINE.finditer(text, start):
        # Nothing behind the last line end is no line, unless there is nothing else.
        if match.end() > match.start() or match.start() == start:
            yield match.start(), match[1], match.end()
