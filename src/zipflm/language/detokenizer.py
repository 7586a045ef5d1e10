"""Conversion of ids to text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zipflm.data.bpe import join
from zipflm.data.vocabulary import CONTINUES, END
from zipflm.language.next_words import MAX_PIECES
from zipflm.language.text import EncodedText, TextReader


class Detokenizer:
    """Converts ids to text incrementally."""

    def __init__(
        self, reader: TextReader, line: Sequence[str] = (), is_tight: bool = False
    ) -> None:
        """`line` contains the words of the current line so far. `is_tight` means that the next word
        follows without a space, for example because the text already ends with one."""
        self._reader, self._is_tight = reader, is_tight
        self._joiner = reader.encoder.splitter.joiner()
        self.line: list[str] = list(line)
        """Completed words of the current line."""
        for word in line:
            self._joiner.add(word)
        self._pieces: list[str] = []
        self._length = 0
        self.offsets: list[int] = []
        """Character offset of each token of the completed words, after any leading space."""
        self.num_lines: int = 0

    @property
    def is_within_word(self) -> bool:
        return bool(self._pieces)

    def add(self, token: int) -> str:
        """Add a token. Return the added text, which is empty until the word is complete."""
        self._pieces.append(self._reader.vocabulary.words[token])
        # Limit the length: a model might never end a word.
        if not self._reader.ends_word[token] and len(self._pieces) < MAX_PIECES:
            return ""
        if token == END and len(self._pieces) == 1:
            self._joiner, self.line = self._reader.encoder.splitter.joiner(), []
            self.num_lines += 1
            text = self._completed("\n")
        else:
            text = self.finish()
        self._is_tight = False
        return text

    def finish(self) -> str:
        """End the current word, even if it is incomplete. Return the added text."""
        if not self._pieces:
            return ""
        text = ""
        if word := join_pieces(self._pieces):
            self.line.append(word)
            text = self._joiner.add(word)
        return self._completed(text.lstrip(" ") if self._is_tight else text)

    def _completed(self, text: str) -> str:
        end = self._length + len(text)
        start = end - len(text.lstrip(" "))
        for piece in self._pieces:
            self.offsets.append(min(start, end))
            start += len(piece.removesuffix(CONTINUES))
        self._pieces, self._length = [], end
        return text


def join_pieces(pieces: Sequence[str]) -> str:
    """Join the pieces of a word, which can be incomplete."""
    return join(pieces).removesuffix(CONTINUES)


def last_line(text: EncodedText) -> Sequence[str]:
    """Return the words after the last line end."""
    line_ends = np.flatnonzero(text.ids[text.starts] == END)
    return text.words[line_ends[-1] + 1 if len(line_ends) else 0 :]
