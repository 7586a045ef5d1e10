"""Conversion of ids to text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zipflm.data.bpe import MAX_PIECES, join
from zipflm.data.encoding import TextEncoder
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS


class Detokenizer:
    """Converts ids to text incrementally."""

    def __init__(
        self,
        encoder: TextEncoder,
        ends_word: NDArray[np.bool_],
        line: Sequence[str] = (),
        is_tight: bool = False,
        max_pieces: int = MAX_PIECES,
    ) -> None:
        """`ends_word` is False for the ids of pieces that do not end a word. `line` contains the
        words of the current line so far. `is_tight` means that the next word follows without a
        space, for example because the text already ends with one. A word ends after `max_pieces`
        pieces: a model might never end it."""
        self._names, self._ends_word = encoder.vocabulary.words, ends_word
        self._splitter, self._is_tight = encoder.splitter, is_tight
        self._max_pieces = max_pieces
        self._joiner = self._splitter.joiner()
        self.line: list[str] = list(line)
        """Completed words of the current line."""
        for word in line:
            self._joiner.add(word)
        self.word: str = ""
        """The last completed word."""
        self._pieces: list[str] = []
        self._is_incomplete = False
        self._length = 0
        self.offsets: list[int] = []
        """Character offset of each token of the completed words, after any leading space."""
        self.num_lines: int = 0

    @property
    def is_within_word(self) -> bool:
        return bool(self._pieces)

    def add(self, token: int) -> str:
        """Add a token. Return the added text, which is empty until the word is complete."""
        self._pieces.append(self._names[token])
        self._is_incomplete = not self._ends_word[token]
        if self._is_incomplete and len(self._pieces) < self._max_pieces:
            return ""
        if token == END and len(self._pieces) == 1:
            self._joiner, self.line = self._splitter.joiner(), []
            self.num_lines += 1
            self.word = SPECIALS[END]
            text = self._completed("\n")
        else:
            text = self.finish()
        self._is_tight = False
        return text

    def finish(self) -> str:
        """End the current word, even if it is incomplete. Return the added text."""
        if not self._pieces:
            return ""
        text, word = "", join(self._pieces)
        self.word = word.removesuffix(CONTINUES) if self._is_incomplete else word
        if self.word:
            self.line.append(self.word)
            text = self._joiner.add(self.word)
        return self._completed(text.lstrip(" ") if self._is_tight else text)

    def _completed(self, text: str) -> str:
        end = self._length + len(text)
        start = end - len(text.lstrip(" "))
        for piece in self._pieces:
            self.offsets.append(min(start, end))
            start += len(piece.removesuffix(CONTINUES))
        self._pieces, self._length = [], end
        return text
