"""Rewrite extracted Wikipedia text in the format of WikiText.

    python runs/wikitext_format.py DICTIONARY IN OUT

Extracted text has headings as lines like `Early life .` and splits `St . Louis`, `don ' t` and
`. . .`. WikiText has `= = Early life = =` between blank lines, `St. Louis`, `don 't` and `...`. A
model trained on the first format never sees common tokens of the second, such as `...` and `'t`.
DICTIONARY lists the words of WikiText, one `word count` per line.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MIN_COUNT = 300  # rarer abbreviations and contractions of the dictionary are not joined
BEFORE_NUMBERS = {"No", "Nos", "p", "pp"}
OMITTED_HEADINGS = {
    "References .",
    "External links .",
    "Further reading .",
    "See also .",
    "Notes .",
}
LONGEST_HEADING = 9  # in tokens, including the period
COMMON_HEADING = 20  # occurrences that make a heading a section rather than a subsection


def is_heading(words: list[str]) -> bool:
    return (
        2 <= len(words) <= LONGEST_HEADING
        and words[-1] == "."
        and not words[0][0].islower()
        and not {".", "!", "?", ":", ";", '"'} & set(words[:-1])
    )


def join_tokens(words: list[str], dictionary: dict[str, int]) -> list[str]:
    """Join periods of abbreviations and apostrophes of contractions with their words."""
    joined: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        following = words[i + 1] if i + 1 < len(words) else ""
        after = words[i + 2] if i + 2 < len(words) else ""
        if word == following == after == ".":
            joined.append("...")
            i += 3
        elif following == "." and after and ends_with_period(word, after, dictionary):
            joined.append(word + ".")
            i += 2
        elif word == "'" and joined and dictionary.get("'" + following, 0) >= MIN_COUNT:
            joined.append("'" + following)
            i += 2
        else:
            joined.append(word)
            i += 1
    return joined


def ends_with_period(word: str, after: str, dictionary: dict[str, int]) -> bool:
    """Return whether the period belongs to the word, as in the Moses tokenizer."""
    if word in BEFORE_NUMBERS:
        return after.isdigit()
    if len(word) == 1:
        return word.isalpha() and word.isupper()
    is_frequent = dictionary.get(word + ".", 0) >= MIN_COUNT
    return is_frequent and word.isalpha() and (after[0].islower() or word.istitle())


def read_articles(path: Path) -> Iterator[list[list[str]]]:
    """Yield the lines of each article, without blank ones, starting with its title."""
    article: list[list[str]] = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) > 2 and words[0] == words[-1] == "=" and article:
                yield article
                article = []
            if words:
                article.append(words)
    yield article


def main(dictionary_file: str, source: str, target: str) -> None:
    dictionary = {}
    with open(dictionary_file, encoding="utf-8") as file:
        for line in file:
            word, count = line.rsplit(" ", 1)
            dictionary[word] = int(count)
    headings = Counter(
        " ".join(words)
        for article in read_articles(Path(source))
        for words in article
        if is_heading(words)
    )
    with open(target, "w", encoding="utf-8") as out:
        for article in read_articles(Path(source)):
            out.write(" \n " + " ".join(article[0]) + " \n \n")
            marks = ""
            lines = [*article, []]
            for previous, words, following in zip(lines, lines[1:], lines[2:], strict=False):
                if not is_heading(words):
                    out.write(" " + " ".join(join_tokens(words, dictionary)) + " \n")
                elif following and " ".join(words) not in OMITTED_HEADINGS:
                    # A heading below a heading starts subsections; a common one ends them.
                    if is_heading(previous) and marks == "= =":
                        marks = "= = ="
                    elif not marks or headings[" ".join(words)] >= COMMON_HEADING:
                        marks = "= ="
                    out.write(f" \n {marks} {' '.join(words[:-1])} {marks} \n \n")


if __name__ == "__main__":
    main(*sys.argv[1:])
