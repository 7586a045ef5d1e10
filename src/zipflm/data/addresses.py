"""The embedded corpus: State of the Union addresses, 1790 to 2021, as tokenised sentences.

The package holds the text, one address a line behind a heading line; splitting it into sentences
and tokens is done here, by plain rules that keep case. Origin and licence: the notice beside the
data file.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from io import TextIOWrapper
from itertools import zip_longest

_FILE = "state_of_the_union.txt.xz"
_HEADING = re.compile(r"= (\d{4}) (.+) =")

# Every tenth address is held out, in turn for validation and for the test, so that each split has
# addresses from all times.
_HELD_OUT_EVERY = 10

_ABBREVIATIONS = (
    "Messrs Mr Mrs Ms Dr Gen Gov Col Capt Lieut Hon Rev St Jr Sr Nos No Art Sec Co Inc viz vs etc "
    "Jan Feb Mar Apr Aug Sept Oct Nov Dec"
)
_TOKEN = re.compile(
    rf"""
    (?:{"|".join(_ABBREVIATIONS.split())})\.(?=\s)   # an abbreviation keeps its period
  | (?:[A-Z]\.){{2,}} | [A-HJ-Z]\.(?=\s)              # as do initials: U.S., J. Q.
  | \d+(?:[.,]\d+)*\w*                               # 1,234.56 and 73d
  | \w+(?:[-'\u2019\u2011]\w+)*                      # words, with hyphens and apostrophes
  | \.\.\.+ | --+
  | \S
    """,
    re.VERBOSE,
)
_ENDS = frozenset(".?!")
_GOES_ON = frozenset(",;:.?!-\u2014")
_CLOSES = frozenset("\"')]\u201d\u2019")


@dataclass(frozen=True)
class Address:
    year: int
    speaker: str
    text: str


def addresses() -> Iterator[Address]:
    """All addresses, oldest first."""
    with (files("zipflm.data") / _FILE).open("rb") as stored, lzma.LZMAFile(stored) as plain:
        lines = TextIOWrapper(plain, encoding="utf-8")
        for heading, text in zip(lines, lines, strict=True):
            match = _HEADING.fullmatch(heading.rstrip("\n"))
            assert match is not None, heading
            yield Address(int(match[1]), match[2], text)


def split_of(number: int) -> str:
    """Which split the address of this number, counted from 0, belongs to."""
    if number % _HELD_OUT_EVERY != _HELD_OUT_EVERY - 1:
        return "train"
    return "valid" if number // _HELD_OUT_EVERY % 2 == 0 else "test"


def sentences(text: str) -> Iterator[str]:
    """Tokens joined by spaces, one sentence at a time.

    >>> list(sentences('Mr. Speaker: "It is so." We agree, in the U.S. and elsewhere.'))
    ['Mr. Speaker : " It is so . "', 'We agree , in the U.S. and elsewhere .']
    """
    sentence: list[str] = []
    tokens = _TOKEN.findall(text)
    for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        sentence.append(token)
        if following not in _CLOSES and _is_over(sentence, following):
            yield " ".join(sentence)
            sentence = []
    if sentence:
        yield " ".join(sentence)


def _is_over(sentence: list[str], following: str) -> bool:
    """A period, perhaps with quotes behind it, unless lower case or a comma follows."""
    closed = len(sentence)
    while closed > 1 and sentence[closed - 1] in _CLOSES:
        closed -= 1
    goes_on = following[:1].islower() or following in _GOES_ON
    return sentence[closed - 1] in _ENDS and not goes_on
