"""Words back to readable text, one at a time, as a model writes them.

Where a space goes is decided by the word at hand and those before it, never by what follows, so
that text can be shown while it is written. What no rule can know from the words alone (whether a
dash had spaces around it, whether an apostrophe opens a quotation) is guessed as English prose has
it most of the time. Only white space is added: the words stay as they are, except that `@-@`, `@,@`
and `@.@` of WikiText become the marks they stand for.
"""

from __future__ import annotations

import re

from zipflm.config import Rule

_CLOSING = frozenset(".,;:!?%)]}\u2026\u201d\u00bb\u00b0\u2032\u2033\u3002\uff0c\u3001\uff01\uff1f")
_OPENING = frozenset("([{\u201c\u2018\u201e\u00ab\u00bf\u00a1$#@\u00a3\u20ac\u00a5\u20b9``")
# Between two words, without spaces.
_TIGHT = frozenset("/\u2014\u2044")
_RUN = re.compile(r"\.{2,}|[!?]{2,}")
_WIKITEXT_MARKS = {"@-@": "-", "@,@": ",", "@.@": "."}
_NO_SPACES_BETWEEN = re.compile(
    # Han, Kana, Thai, Lao, Burmese, Khmer, and their punctuation.
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60"
    "\U00020000-\U0003ffff]"
)


class Joiner:
    """The text of one line, grown word by word."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._last = self._before_last = ""
        self._open: set[str] = set()
        # Whether the next word follows without a space.
        self._is_tight = True

    def add(self, word: str) -> str:
        """What the word adds to the text: itself, behind a space where one belongs."""
        before, after = self._spaces(word)
        space = " " if before and not self._is_tight else ""
        self._is_tight = not after
        self._before_last, self._last = self._last, word
        return space + (_WIKITEXT_MARKS.get(word, word) if self._rule == "wikitext" else word)

    def _spaces(self, word: str) -> tuple[bool, bool]:
        """Whether a space may stand before the word, and behind it."""
        if self._rule == "whitespace":
            return True, True
        if word in _CLOSING or _RUN.fullmatch(word):
            return False, True
        if word in _OPENING:
            return True, False
        if word in _TIGHT or (self._rule == "wikitext" and word in _WIKITEXT_MARKS):
            return False, False
        if word in ('"', "'", "\u2019", "''"):
            return self._quotation_mark(word)
        if self._rule == "wikitext" and word[0] == "'":  # 's
            return False, True
        if word == "\u2013":  # from 5 to 6, without spaces
            is_range = self._last[-1:].isdigit()
            return not is_range, not is_range
        return not self._follows_without_space(word), True

    def _quotation_mark(self, word: str) -> tuple[bool, bool]:
        """It closes what is open; else it opens, unless it is the apostrophe of a plural."""
        is_apostrophe = word in ("'", "\u2019") and self._last[-1:] in ("s", "S")
        if word == "''" or word in self._open or is_apostrophe or self._closes_typographic(word):
            self._open.discard(word)
            return False, True
        self._open.add(word)
        return True, False

    def _closes_typographic(self, word: str) -> bool:
        return word == "\u2019" and self._last != ""

    def _follows_without_space(self, word: str) -> bool:
        if self._last == ":" and self._rule == "wikitext":  # 10 : 30
            return self._before_last.isdigit() and word.isdigit()
        last = self._last[-1:]
        return bool(_NO_SPACES_BETWEEN.match(word) and _NO_SPACES_BETWEEN.match(last))
