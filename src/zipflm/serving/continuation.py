"""One text while it is written: what its ids spell, where it ends, and what can be shown of it.

A word in pieces is shown when it is complete. Where the end of the text might be the beginning of a
stop sequence, it is held back until that is clear, since what has been sent cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zipflm.data.bpe import join
from zipflm.data.vocabulary import CONTINUES, END
from zipflm.language.next_words import MOST_PIECES
from zipflm.language.texts import TextReader
from zipflm.serving.scoring import Likely


class Spelling:
    """Ids as readable text, one after the other."""

    def __init__(self, reader: TextReader, has_space: bool = False) -> None:
        """With `has_space` there is a space already before the first word."""
        self._reader, self._has_space = reader, has_space
        self._joiner = reader.encoder.splitter.joiner()
        self._pieces: list[str] = []
        self._length = 0
        self.offsets: list[int] = []
        """Where each token of a complete word begins in the text, after any space."""
        self.num_lines: int = 0
        """That have ended."""

    @property
    def is_within_word(self) -> bool:
        return bool(self._pieces)

    def follow(self, words: Sequence[str]) -> None:
        """The line has begun with these words, which are written already."""
        for word in words:
            self._joiner.add(word)

    def add(self, token: int) -> str:
        """What it adds to the text: nothing before the word is complete."""
        self._pieces.append(self._reader.vocabulary.words[token])
        # A model may go on with the pieces of one word for ever.
        if not self._reader.ends_word[token] and len(self._pieces) < MOST_PIECES:
            return ""
        is_end = token == END and len(self._pieces) == 1
        if is_end:
            self._joiner = self._reader.encoder.splitter.joiner()
            self.num_lines += 1
            text = self._completed("\n")
        else:
            text = self.finish()
        self._has_space = False
        return text

    def finish(self) -> str:
        """The word that was begun, as far as it goes."""
        if not self._pieces:
            return ""
        word = join(self._pieces).removesuffix(CONTINUES)
        text = self._joiner.add(word) if word else ""
        return self._completed(text.lstrip(" ") if self._has_space else text)

    def _completed(self, text: str) -> str:
        """Places of the pieces in the word that they have added."""
        end = self._length + len(text)
        start = end - len(text.lstrip(" "))
        for piece in self._pieces:
            self.offsets.append(min(start, end))
            start += len(piece.removesuffix(CONTINUES))
        self._pieces, self._length = [], end
        return text


@dataclass(frozen=True)
class WrittenToken:
    """One id that was drawn."""

    token: int
    logprob: float
    """The model's own, in nats."""
    top: Likely
    """The most likely ids in its place, as many as were asked for."""
    offset: int
    """Where in the written text its first character stands."""


@dataclass
class Delta:
    """What there is to show since the last time."""

    text: str = ""
    tokens: list[WrittenToken] = field(default_factory=list)
    finish_reason: str | None = None


class Continuation:
    """The text that one row writes."""

    def __init__(
        self, spelling: Spelling, *, max_tokens: int, lines: int = 1, stop: Sequence[str] = ()
    ) -> None:
        """It ends after `max_tokens` ids, `lines` line ends (0: never) or before a stop sequence;
        the line end that ends it is not part of the text."""
        self.text: str = ""
        self.tokens: list[WrittenToken] = []
        """Of complete words."""
        self.finish_reason: str | None = None if max_tokens else "length"
        self.max_tokens = max_tokens
        self._spelling, self._stop = spelling, stop
        self._last_line = spelling.num_lines + lines if lines else None
        self._longest_stop = max(map(len, stop), default=0)
        self._drawn: list[tuple[int, float, Likely]] = []
        self._num_shown = self._num_told = 0

    def add(self, token: int, logprob: float, top: Likely) -> None:
        """One id more."""
        self._drawn.append((token, logprob, top))
        begin = len(self.text)
        added = self._spelling.add(token)
        if self._spelling.num_lines == self._last_line:
            added, self.finish_reason = "", "stop"
        is_full = len(self._drawn) >= self.max_tokens
        if is_full and self.finish_reason is None:
            self.finish_reason = "length"
            added += self._spelling.finish()
        for place in range(len(self.tokens), len(self._spelling.offsets)):
            self.tokens.append(WrittenToken(*self._drawn[place], self._spelling.offsets[place]))
        self.text += added
        self._cut_at_stop(begin)

    def _cut_at_stop(self, begin: int) -> None:
        """The text ends before the first stop sequence in it."""
        first = max(0, begin - self._longest_stop + 1)
        found = [place for each in self._stop if (place := self.text.find(each, first)) >= 0]
        if found:
            self.text, self.finish_reason = self.text[: min(found)], "stop"

    def take(self) -> Delta:
        """What can be shown by now and has not been."""
        shown = len(self.text) if self.finish_reason else self._certain()
        shown = max(shown, self._num_shown)
        delta = Delta(
            self.text[self._num_shown : shown], self.tokens[self._num_told :], self.finish_reason
        )
        self._num_shown, self._num_told = shown, len(self.tokens)
        return delta

    def _certain(self) -> int:
        """Up to where no stop sequence can have begun."""
        return min(map(self._begin_of, self._stop), default=len(self.text))

    def _begin_of(self, stop: str) -> int:
        """Where the text's end begins that may go on to a stop sequence. Only places with its first
        character are tried: it may be long, and this is asked for every word of every text."""
        place = self.text.find(stop[0], max(0, len(self.text) - len(stop) + 1))
        while place >= 0 and not stop.startswith(self.text[place:]):
            place = self.text.find(stop[0], place + 1)
        return len(self.text) if place < 0 else place
