"""Raw text to words by rule, with spans, and words back to readable text.

Joining works one word at a time: where a space goes depends on the word and those before it, so
text can be shown while it is generated. Spacing that words alone cannot tell (around a dash, after
an apostrophe) follows the most common use in English. `@-@`, `@,@` and `@.@` of WikiText become the
marks they stand for; words are otherwise unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from zipflm.config import Rule, Splitting
from zipflm.data.vocabulary import SPECIALS, UNKNOWN

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
        """The text that the word adds: itself, after a space where one belongs."""
        before, after = self._spaces(word)
        space = " " if before and not self._is_tight else ""
        self._is_tight = not after
        self._before_last, self._last = self._last, word
        return space + (_WIKITEXT_MARKS.get(word, word) if self._rule == "wikitext" else word)

    def _spaces(self, word: str) -> tuple[bool, bool]:
        """Whether a space may stand before the word, and after it."""
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


# Characters of different tokens whose words are remembered; beyond that all are forgotten, so that
# a stream of any length is split in bounded memory. Not a number of tokens: where there are no
# spaces between words, a token is as long as a line.
_REMEMBERED = 1 << 20

# A longer token is cut into stretches of this many characters, each split on its own: some patterns
# take time with the square of its length, and no word is that long.
_LONGEST_STRETCH = 1_000

_MARKS_BEHIND = frozenset(".,;:!?)\"'%]")
_MARKS_IN_FRONT = frozenset('("[$')

_TOKEN = re.compile(r"\S+")

_Parts = list[tuple[str, tuple[int, int]]]


class Piece(NamedTuple):
    """A word, and where in the text it stands."""

    word: str
    """As the vocabulary knows it: lowercased, `@-@`, where the rule says so."""
    start: int
    end: int


class Splitter:
    """Applies one `Splitting`; cheap for tokens that were seen before."""

    def __init__(self, splitting: Splitting) -> None:
        self.splitting = splitting
        self._pieces_of = _RULES[splitting.rule](splitting.lowercase)
        self._seen: dict[str, tuple[Piece, ...]] = {}
        self._num_characters = 0
        """Total length of the tokens seen."""

    def words(self, line: str) -> list[Piece]:
        """The words of a line in order, with their spans; what lies between is white space."""
        pieces: list[Piece] = []
        for match in _TOKEN.finditer(line):
            offset = match.start()
            for word, start, end in self.token(match[0]):
                pieces.append(Piece(word, offset + start, offset + end))
        return pieces

    def token(self, token: str) -> tuple[Piece, ...]:
        """The words of a stretch without white space, at least one."""
        found = self._seen.get(token)
        if found is None:
            if self._num_characters + len(token) > _REMEMBERED:
                self._seen.clear()
                self._num_characters = 0
            self._num_characters += len(token)
            found = self._seen[token] = self._split(token)
        return found

    def words_of(self, tokens: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """The words of each token, without spans."""
        for token in tokens:
            words = self._obvious(token)  # not worth remembering
            if words is None:
                words = tuple([piece.word for piece in self.token(token)])
            elif self.splitting.lowercase:
                words = tuple(map(lowercase, words))
            yield words

    def join(self, words: Iterable[str]) -> str:
        """Readable text: the inverse of `words`, but for white space and what a rule replaces."""
        joiner = self.joiner()
        return "".join(joiner.add(word) for word in words)

    def joiner(self) -> Joiner:
        """The same for one line whose words come one at a time."""
        return Joiner(self.splitting.rule)

    def _split(self, token: str) -> tuple[Piece, ...]:
        pieces = self._pieces_of(token)
        if self.splitting.lowercase:
            pieces = [piece._replace(word=lowercase(piece.word)) for piece in pieces]
        return tuple(pieces)

    def _obvious(self, token: str) -> tuple[str, ...] | None:
        """The words of most tokens, without the pattern: letters and digits, perhaps with a mark in
        front or after them; None for the others."""
        if self.splitting.rule == "whitespace":
            return (token,)
        if not token.isascii() or len(token) > _LONGEST_STRETCH:
            return None
        if token.isalnum():
            return (token,)
        word, mark = token[:-1], token[-1]
        if mark in _MARKS_BEHIND and word.isalnum():
            is_abbreviation = mark == "." and (len(word) == 1 or word in _EVER_ABBREVIATED)
            return None if is_abbreviation else (word, mark)
        mark, word = token[0], token[1:]
        return (mark, word) if mark in _MARKS_IN_FRONT and word.isalnum() else None


def lowercase(word: str) -> str:
    """In lower case, unless that would make a special of it, such as a line end of `</S>`."""
    lowered = word.lower()
    return word if lowered in SPECIALS else lowered


_Rule = Callable[[str], list[Piece]]


def _whitespace(lowercased: bool) -> _Rule:
    return lambda token: [Piece(token, 0, len(token))]


# --- words ---

# White space in a pattern is for the reader; an apostrophe is \x27 where it would end the string.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\u30FC\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# Joiners that shape letters, and soft hyphens, are parts of the words they stand in.
_LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}_\u00AD\u200C\u200D]&&[^{_SPACELESS}]]"

_WORDS = rf"""(?x)
    {SPECIALS[UNKNOWN]}
    # Addresses, up to their last letter, digit or slash.
  | (?: [A-Za-z][A-Za-z0-9+.\-]{{0,15}}:// | [Ww]{{3}}\. ) \S* [\p{{L}}\p{{N}}/]
  | [\p{{L}}\p{{N}}_.%+\-]{{1,64}} @ [\p{{L}}\p{{N}}\-]{{1,63}} (?: \. [\p{{L}}\p{{N}}\-]{{1,63}} )+
    # Initials, perhaps followed by a word: U.S., U.S.-led.
  | (?: \p{{L}} \p{{M}}* \. ){{2,}} (?: {_LETTER}+ | (?: - {_LETTER}+ )+ )?
    # Words and numbers, with what may stand inside them.
  | (?: \A [-+\u2212] (?= \.?\d ) )? (?: (?<! {_LETTER} ) \. (?= \d ) )?
    {_LETTER}+
    (?: (?: ['\u2019\-\u2010\u2011&]
          | (?<= \d ) [.,:] (?= \d )
          | (?<= \p{{L}} ) \. (?= \p{{Ll}} ) ) {_LETTER}+ )*
    (?: - (?= ,|\z ) )?
  | [{_SPACELESS}] \p{{M}}*
  | \.{{2,}} | -{{2,}} | [!?]{{2,}} | \x27\x27 | ``
    # Anything else, with all that modifies it.
  | \X
"""


def _words(lowercased: bool) -> _Rule:
    parts = _compiled(_WORDS)
    return lambda token: [Piece(word, start, end) for word, (start, end) in parts(token)]


# --- wikitext ---

# What follows an apostrophe in one word with it.
_AFTER_APOSTROPHE = """
    s t m re ve d ll
    clock \u00e9tat Brien Reilly Connor Connors Neill Neil Neal Malley Donnell Sullivan Hara Leary
    Connell Quinn Rourke Toole Dell Hare Grady Halloran Higgins Bannon Keefe Dea Loughlin
    Shaughnessy Donoghue Farrell Brian Angelo Oyly Or Day Italia Oliveira Cie Ivoire Naga honneur
    amore Estrange Enfant Arcy Onofrio Estaing Souza Homme Arc Este Diaye Hautpoul
"""
_ABBREVIATIONS = """
    St Dr Mr Mrs Ms Messrs Mme Mlle Jr Sr Bros vs Gen Lt Col Sgt Maj Brig Capt Cpl Cmdr Pvt Rev Hon
    Prof Rep Sen Gov Inc Ltd Corp Nos pp al etc var subsp spp cf Nr Nov Dec Jan Oct Feb Aug
"""
# With a capital only: in lower case they are words that may end a sentence.
_CAPITALISED_ABBREVIATIONS = "No Co Op Bus Bart"
_EVER_ABBREVIATED = frozenset(
    f"{_ABBREVIATIONS} {_ABBREVIATIONS.lower()} {_CAPITALISED_ABBREVIATIONS}".split()
)

_ALNUM = r"[\p{L}\p{M}\p{N}]"

_WIKITEXT = rf"""(?x)
    {"|".join(SPECIALS)} | <formula> | @[-,.]@
    # A number with separators, which become words later. What holds letters too is a word.
  | (?: (?<! {_ALNUM} ) - )? \d++ (?: [.,] \d++ )++ (?! {_ALNUM} )
    # U.S., U.S.-based; J., Mr.
  | {_ALNUM}+ (?: \. {_ALNUM}+ )+ \. (?! {_ALNUM} | \. ) (?: - {_ALNUM}+ )*
  | (?: \p{{L}} \p{{M}}* | ABBREVIATIONS ) \. (?! {_ALNUM} | \. )
    # Words, with a hyphen before or after unless a word lies on the other side too.
  | (?: (?<! {_ALNUM} ) - (?= \.?{_ALNUM} ) )? (?: \. (?= \d ) )?
    {_ALNUM}+ (?: (?: \. | (?<= \d ) , (?= \d ) ) {_ALNUM}+ )*
    (?: - (?! - | {_ALNUM} ) )?
  | [\x27\u2019] (?: AFTER_APOSTROPHE ) (?! {_ALNUM} )
  | \.{{2,}} | -{{2,}}
  | \X
"""
_PLAIN_MARKS = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)+")
_PART_OF_NUMBER = re.compile(r"-?\d+|[.,]")


def _wikitext(lowercased: bool) -> _Rule:
    """Lowercased forms are known as well, so that words are not split further a second time."""
    endings, abbreviations = _AFTER_APOSTROPHE.split(), _ABBREVIATIONS.split()
    endings += [form(word) for word in endings for form in (str.lower, str.upper)]
    if lowercased:
        abbreviations += [word.lower() for word in abbreviations]
    else:
        abbreviations += _CAPITALISED_ABBREVIATIONS.split()
    pattern = _WIKITEXT.replace("ABBREVIATIONS", "|".join(abbreviations))
    parts = _compiled(pattern.replace("AFTER_APOSTROPHE", "|".join(endings)))

    def pieces(token: str) -> list[Piece]:
        if len(token) == 1:  # also a typographic mark, which WikiText has here and there
            return [Piece(token, 0, 1)]
        found: list[Piece] = []
        for part, (start, end) in parts(token):
            if (
                part == "-"
                and _is_alnum(token[start - 1 : start])
                and _is_alnum(token[end : end + 1])
            ):
                found.append(Piece("@-@", start, end))
            elif _NUMBER.fullmatch(part):
                found += _number(part, start)
            else:
                found.append(Piece(part.translate(_PLAIN_MARKS), start, end))
        return found

    return pieces


def _is_alnum(character: str) -> bool:
    """Whether there is one, and it is a letter, a mark or a digit."""
    return character != "" and unicodedata.category(character)[0] in "LMN"


def _number(part: str, offset: int) -> Iterator[Piece]:
    for match in _PART_OF_NUMBER.finditer(part):
        word = f"@{match[0]}@" if match[0] in ".," else match[0]
        yield Piece(word, offset + match.start(), offset + match.end())


_RULES: dict[str, Callable[[bool], _Rule]] = {
    "whitespace": _whitespace,
    "words": _words,
    "wikitext": _wikitext,
}


def _compiled(pattern: str) -> Callable[[str], _Parts]:
    """Cuts a token into the matches of a pattern that covers all of it."""
    # Here, so that processes that read text by white space need not load the library.
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str

    def parts(token: str) -> _Parts:
        if len(token) <= _LONGEST_STRETCH:
            return split(token)
        return [
            (part, (offset + start, offset + end))
            for offset in range(0, len(token), _LONGEST_STRETCH)
            for part, (start, end) in split(token[offset : offset + _LONGEST_STRETCH])
        ]

    return parts
