"""Rules that split raw text into words with spans, and join words into readable text.

Joining works word by word, so text can be shown while it is generated. Where words alone do not
determine the spacing (around a dash, after an apostrophe), the most common English usage applies.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

from zipflm.config import Rule, Splitting
from zipflm.data.vocabulary import SPECIALS, UNKNOWN

_CLOSING = frozenset(".,;:!?%)]}\u2026\u201d\u00bb\u00b0\u2032\u2033\u3002\uff0c\u3001\uff01\uff1f")
_OPENING = frozenset("([{\u201c\u2018\u201e\u00ab\u00bf\u00a1$#@\u00a3\u20ac\u00a5\u20b9`") | {"``"}
_TIGHT = frozenset("/\u2014\u2044")  # no space on either side
_REPEATED_MARKS = re.compile(r"\.{2,}|[!?]{2,}")
_WIKITEXT_MARKS = {"@-@": "-", "@,@": ",", "@.@": "."}
_NO_SPACES_BETWEEN = re.compile(
    # Han, Kana, Thai, Lao, Burmese, Khmer, and their punctuation.
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60"
    "\U00020000-\U0003ffff]"
)


class Joiner:
    """Joins the words of one line into text, word by word."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._last = self._before_last = ""
        self._open: set[str] = set()
        self._is_tight = True  # no space before the next word

    def add(self, word: str) -> str:
        """Return the text that the word adds: the word, after a space if it needs one."""
        before, after = self._spaces(word)
        space = " " if before and not self._is_tight else ""
        self._is_tight = not after
        self._before_last, self._last = self._last, word
        return space + (_WIKITEXT_MARKS.get(word, word) if self._rule == "wikitext" else word)

    def _spaces(self, word: str) -> tuple[bool, bool]:
        """Return whether a space can precede the word, and whether one can follow it."""
        if self._rule == "whitespace":
            return True, True
        if word in _CLOSING or _REPEATED_MARKS.fullmatch(word):
            return False, True
        if word in _OPENING:
            return True, False
        if word in _TIGHT or (self._rule == "wikitext" and word in _WIKITEXT_MARKS):
            return False, False
        if word in ('"', "'", "\u2019", "''"):
            return self._quotation_mark(word)
        if self._rule == "wikitext" and word[0] == "'":  # 's
            return False, True
        if word == "\u2013":  # a range such as 5-6 has no spaces
            is_range = self._last[-1:].isdigit()
            return not is_range, not is_range
        return not self._follows_without_space(word), True

    def _quotation_mark(self, word: str) -> tuple[bool, bool]:
        """Return the spacing of a mark that closes or opens a quotation or is an apostrophe."""
        is_apostrophe = word in ("'", "\u2019") and self._last[-1:] in ("s", "S")
        is_closing = word == "''" or (word == "\u2019" and self._last != "")
        if is_closing or word in self._open or is_apostrophe:
            self._open.discard(word)
            return False, True
        self._open.add(word)
        return True, False

    def _follows_without_space(self, word: str) -> bool:
        if self._last == ":" and self._rule == "wikitext":  # 10 : 30
            return self._before_last.isdigit() and word.isdigit()
        last = self._last[-1:]
        return bool(_NO_SPACES_BETWEEN.match(word) and _NO_SPACES_BETWEEN.match(last))


_MAX_CACHED = 1 << 15
_MAX_CACHED_CHARS = 100

# A longer token is split into segments of this many characters, because some patterns take
# quadratic time.
_MAX_SEGMENT_CHARS = 1_000

_TRAILING_MARKS = frozenset(".,;:!?)\"'%]")
_LEADING_MARKS = frozenset('("[$')

_TOKEN = re.compile(r"\S+")

_Parts = list[tuple[str, tuple[int, int]]]


_T = TypeVar("_T")


def cache_short(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Cache the results for short strings.

    In languages without spaces, a token can be as long as a line, so caching all results would take
    a lot of memory.
    """
    cached = lru_cache(_MAX_CACHED)(function)
    return lambda text: cached(text) if len(text) <= _MAX_CACHED_CHARS else function(text)


class WordSpan(NamedTuple):
    """A word and its span in the text."""

    word: str
    """As in the vocabulary: possibly lowercased or replaced, for example by `@-@`."""
    start: int
    end: int


class Splitter:
    """Applies one `Splitting`, with a cache of tokens."""

    def __init__(self, splitting: Splitting) -> None:
        self.splitting = splitting
        self._split_by_rule = _build_rule(splitting)
        self.token: Callable[[str], tuple[WordSpan, ...]] = cache_short(self._split)
        """Returns the words of a token, which must not contain whitespace."""

    def words(self, line: str) -> list[WordSpan]:
        """Return the words of a line with their spans. The text between them is whitespace."""
        spans: list[WordSpan] = []
        for match in _TOKEN.finditer(line):
            offset = match.start()
            for word, start, end in self.token(match[0]):
                spans.append(WordSpan(word, offset + start, offset + end))
        return spans

    def words_of(self, tokens: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Yield the words of each token, without spans."""
        for token in tokens:
            words = self._split_simple(token)  # not worth caching
            if words is None:
                words = tuple([span.word for span in self.token(token)])
            elif self.splitting.lowercase:
                words = tuple(map(lowercase, words))
            yield words

    def joiner(self) -> Joiner:
        """Return a `Joiner` for the words of one line. It inverts `words`, except for whitespace
        and replacements."""
        return Joiner(self.splitting.rule)

    def _split(self, token: str) -> tuple[WordSpan, ...]:
        spans = self._split_by_rule(token)
        if self.splitting.lowercase:
            spans = [span._replace(word=lowercase(span.word)) for span in spans]
        return tuple(spans)

    def _split_simple(self, token: str) -> tuple[str, ...] | None:
        """Split letters and digits with at most one mark. Return None for other tokens.

        Most tokens are this simple, and the pattern is slow.
        """
        if self.splitting.rule == "whitespace":
            return (token,)
        if not token.isascii() or len(token) > _MAX_SEGMENT_CHARS:
            return None
        if token.isalnum():
            return (token,)
        word, mark = token[:-1], token[-1]
        if mark in _TRAILING_MARKS and word.isalnum():
            is_abbreviation = mark == "." and (len(word) == 1 or word in _ALL_ABBREVIATIONS)
            return None if is_abbreviation else (word, mark)
        mark, word = token[0], token[1:]
        return (mark, word) if mark in _LEADING_MARKS and word.isalnum() else None


def lowercase(word: str) -> str:
    """Lowercase a word, unless the result is a special token (`</S>`)."""
    lowered = word.lower()
    return word if lowered in SPECIALS else lowered


_Rule = Callable[[str], list[WordSpan]]


def _build_rule(splitting: Splitting) -> _Rule:
    match splitting.rule:
        case "whitespace":
            return lambda token: [WordSpan(token, 0, len(token))]
        case "words":
            parts = _compiled(_WORDS)
            return lambda token: [WordSpan(word, start, end) for word, (start, end) in parts(token)]
        case "wikitext":
            return _wikitext(splitting.lowercase)


# --- words ---

# Patterns use (?x), so whitespace in them is ignored; \x27 is an apostrophe.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\u30FC\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
# Zero-width joiners and soft hyphens belong to the word they are in.
_LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}_\u00AD\u200C\u200D]&&[^{_SPACELESS}]]"

_WORDS = rf"""(?x)
    {SPECIALS[UNKNOWN]}
    # URLs and e-mail addresses, up to their last letter, digit or slash.
  | (?: [A-Za-z][A-Za-z0-9+.\-]{{0,15}}:// | [Ww]{{3}}\. ) \S* [\p{{L}}\p{{N}}/]
  | [\p{{L}}\p{{N}}_.%+\-]{{1,64}} @ [\p{{L}}\p{{N}}\-]{{1,63}} (?: \. [\p{{L}}\p{{N}}\-]{{1,63}} )+
    # Initials, optionally followed by a word: U.S., U.S.-led.
  | (?: \p{{L}} \p{{M}}* \. ){{2,}} (?: {_LETTER}+ | (?: - {_LETTER}+ )+ )?
    # Words and numbers, with the marks that are allowed inside them.
  | (?: \A [-+\u2212] (?= \.?\d ) )? (?: (?<! {_LETTER} ) \. (?= \d ) )?
    {_LETTER}+
    (?: (?: ['\u2019\-\u2010\u2011&]
          | (?<= \d ) [.,:] (?= \d )
          | (?<= \p{{L}} ) \. (?= \p{{Ll}} ) ) {_LETTER}+ )*
    (?: - (?= ,|\z ) )?
  | [{_SPACELESS}] \p{{M}}*
  | \.{{2,}} | -{{2,}} | [!?]{{2,}} | \x27\x27 | ``
    # Any other character, with its modifiers.
  | \X
"""


# --- wikitext ---

# Endings that form one word with the apostrophe before them.
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
# Only with a capital: in lower case these are words that can end a sentence.
_CAPITALIZED_ABBREVIATIONS = "No Co Op Bus Bart"
_ALL_ABBREVIATIONS = frozenset(
    f"{_ABBREVIATIONS} {_ABBREVIATIONS.lower()} {_CAPITALIZED_ABBREVIATIONS}".split()
)

_ALNUM = r"[\p{L}\p{M}\p{N}]"

_WIKITEXT = rf"""(?x)
    {"|".join(SPECIALS)} | <formula> | @[-,.]@
    # A number with separators, which become words later. With letters it is a word.
  | (?: (?<! {_ALNUM} ) - )? \d++ (?: [.,] \d++ )++ (?! {_ALNUM} )
    # U.S., U.S.-based; J., Mr.
  | {_ALNUM}+ (?: \. {_ALNUM}+ )+ \. (?! {_ALNUM} | \. ) (?: - {_ALNUM}+ )*
  | (?: \p{{L}} \p{{M}}* | ABBREVIATIONS ) \. (?! {_ALNUM} | \. )
    # Words, including a leading or trailing hyphen, but not one between two words.
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
    """Return the rule. With `lowercased`, it also knows lowercase abbreviations, so that splitting
    its result again changes nothing."""
    endings, abbreviations = _AFTER_APOSTROPHE.split(), _ABBREVIATIONS.split()
    endings += [form(word) for word in endings for form in (str.lower, str.upper)]
    if lowercased:
        abbreviations += [word.lower() for word in abbreviations]
    else:
        abbreviations += _CAPITALIZED_ABBREVIATIONS.split()
    pattern = _WIKITEXT.replace("ABBREVIATIONS", "|".join(abbreviations))
    parts = _compiled(pattern.replace("AFTER_APOSTROPHE", "|".join(endings)))

    def split(token: str) -> list[WordSpan]:
        if len(token) == 1:  # keep typographic marks, which also occur in WikiText
            return [WordSpan(token, 0, 1)]
        spans: list[WordSpan] = []
        for part, (start, end) in parts(token):
            if (
                part == "-"
                and _is_alnum(token[start - 1 : start])
                and _is_alnum(token[end : end + 1])
            ):
                spans.append(WordSpan("@-@", start, end))
            elif _NUMBER.fullmatch(part):
                spans += _number(part, start)
            else:
                spans.append(WordSpan(part.translate(_PLAIN_MARKS), start, end))
        return spans

    return split


def _is_alnum(character: str) -> bool:
    return character != "" and unicodedata.category(character)[0] in "LMN"


def _number(part: str, offset: int) -> Iterator[WordSpan]:
    for match in _PART_OF_NUMBER.finditer(part):
        word = f"@{match[0]}@" if match[0] in ".," else match[0]
        yield WordSpan(word, offset + match.start(), offset + match.end())


def _compiled(pattern: str) -> Callable[[str], _Parts]:
    """Return a function that splits a token into the matches of a pattern."""
    # Imported here because plain whitespace splitting does not need it.
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str

    def parts(token: str) -> _Parts:
        if len(token) <= _MAX_SEGMENT_CHARS:
            return split(token)
        return [
            (part, (offset + start, offset + end))
            for offset in range(0, len(token), _MAX_SEGMENT_CHARS)
            for part, (start, end) in split(token[offset : offset + _MAX_SEGMENT_CHARS])
        ]

    return parts
