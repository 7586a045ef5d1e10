"""The four ways in which people write n-best lists: Kaldi's, Moses's, JSON lines and tables.

A format turns a line into an `Entry`, and an entry with its new scores into a line again; what it
does not understand of a line it writes back as it was. Messages leave out the file and the line,
which `nbest` knows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from zipflm.data.text import shown
from zipflm.language.lines import numbered_lines
from zipflm.quoting import quoted, unquoted

FormatName = Literal["kaldi", "moses", "jsonl", "tsv"]

WORDS, TOTAL = "words", "total"
"""Names that no score of a list may have for itself: its number of words, and the weighted sum."""

# Kaldi's hypotheses are utterance-1, utterance-2 and so on; with a leading zero it is no rank but
# the end of an utterance's own name.
_RANKED = re.compile(r"(?P<utterance>\S+)-(?P<rank>[1-9][0-9]*)")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE_ITSELF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One hypothesis of a list."""

    utterance: str
    text: str
    scores: Mapping[str, float]
    line: int
    source: Any
    """Of the line as read, what its format needs to write it again."""

    @property
    def words(self) -> list[str]:
        return self.text.split()


class Format(Protocol):
    """How lists are read and written."""

    def take_header(self, line: str) -> bool:
        """Look at the first line of a list; whether it is no entry."""
        ...

    def entry(self, number: int, line: str) -> Entry: ...

    def header(self, new: tuple[str, ...]) -> str | None:
        """The first line of a list with these scores added."""

    def line(self, entry: Entry, new: Mapping[str, float]) -> str:
        """An entry with these scores added, or in place of those of the same name."""
        ...

    def best(self, entry: Entry) -> str:
        """An entry as the only one of its utterance."""
        ...

    def finish(self) -> None:
        """The list has ended; ValueError if something else has not."""


class Kaldi:
    """Lines `utterance-N words`; scores are in files of their own, `utterance-N number`."""

    def __init__(self, scores: Mapping[str, str], costs: Mapping[str, str]) -> None:
        """Files by the names of their scores; `costs` have the other sign, as Kaldi writes them."""
        self._tables = {
            name: _Table(file, sign)
            for files, sign in ((scores, 1.0), (costs, -1.0))
            for name, file in files.items()
        }
        self._utterance = ""
        self._ranks: set[str] = set()
        """Of the hypotheses that were there of this utterance."""

    def take_header(self, line: str) -> bool:
        return False

    def entry(self, number: int, line: str) -> Entry:
        key, text = [*line.split(maxsplit=1), "", ""][:2]
        ranked = _RANKED.fullmatch(key)
        if ranked is None:
            raise ValueError(
                f"{unquoted(key)} is not an utterance, a hyphen and a rank from 1 on (utt7-1)"
            )
        if ranked["utterance"] != self._utterance:
            self._utterance, self._ranks = ranked["utterance"], set()
        if ranked["rank"] in self._ranks:
            raise ValueError(f"hypothesis {unquoted(key)} is there twice")
        self._ranks.add(ranked["rank"])
        scores = {name: table.next(key) for name, table in self._tables.items()}
        return Entry(ranked["utterance"], text.strip(), scores, number, key)

    def header(self, new: tuple[str, ...]) -> str | None:
        return None

    def line(self, entry: Entry, new: Mapping[str, float]) -> str:
        # There is no place for scores; the key tells whose they are in other files.
        return f"{entry.source} {entry.text}".rstrip()

    def best(self, entry: Entry) -> str:
        return _keyed(entry)

    def finish(self) -> None:
        for table in self._tables.values():
            table.finish()


class _Table:
    """One score per hypothesis, in the order of the list."""

    def __init__(self, file: str, sign: float) -> None:
        self._file, self._sign = file, sign
        self._lines: Iterator[tuple[int, str]] = numbered_lines(file)

    def next(self, key: str) -> float:
        number, line = next(self._lines, (0, ""))
        fields = line.split()
        if number == 0:
            raise ValueError(f"{shown(self._file)} has ended; it needs a line for every hypothesis")
        where = f"{shown(self._file)}: line {number}"
        if len(fields) != 2 or fields[0] != key:
            raise ValueError(
                f"{where} should be {unquoted(key)} and a number, not {quoted(line)}; both files "
                "must have the same hypotheses in the same order (sort both)"
            )
        return self._sign * _number(where, fields[1])

    def finish(self) -> None:
        number, line = next(self._lines, (0, ""))
        if number:
            raise ValueError(
                f"{shown(self._file)}: line {number}: {quoted(line)} is of no hypothesis of the "
                "list, which has ended"
            )


class Moses:
    """Lines `sentence ||| words ||| name= number ... ||| total`, with more fields or without."""

    def take_header(self, line: str) -> bool:
        return False

    def entry(self, number: int, line: str) -> Entry:
        fields = [field.strip() for field in line.split("|||")]
        if len(fields) < 4:
            raise ValueError(
                f"has {len(fields)} fields, not 4 or more: id ||| words ||| features ||| total"
            )
        key = _checked_key(fields[0])
        scores = _features(fields[2])
        if TOTAL in scores:
            raise ValueError("has a feature total beside the total of the line; rename it")
        scores[TOTAL] = _number("the total", fields[3])
        return Entry(key, fields[1], scores, number, fields)

    def header(self, new: tuple[str, ...]) -> str | None:
        return None

    def line(self, entry: Entry, new: Mapping[str, float]) -> str:
        key, text, features, total, *rest = entry.source
        for name, value in new.items():
            if name == TOTAL:
                total = written_number(value)
            else:
                features = f"{features} {name}= {written_number(value)}".strip()
        return " ||| ".join([key, text, features, total, *rest])

    def best(self, entry: Entry) -> str:
        # One line per sentence, as the decoder itself and the tools behind it have it.
        return " ".join(entry.words)

    def finish(self) -> None:
        pass


def _features(text: str) -> dict[str, float]:
    """`a= 1 b= 2 3` as scores a, b.1 and b.2; old lists have `a: 1`."""
    values: dict[str, list[float]] = {}
    name: str | None = None
    for part in text.replace("=", "= ").split():
        if part[-1] in "=:" and len(part) > 1:
            name = part[:-1]
            if name in values:
                raise ValueError(f"has the feature {unquoted(name)} twice")
            values[name] = []
        elif name is None:
            raise ValueError(f"{quoted(part)} comes before the name of a feature (name= number)")
        else:
            values[name].append(_number(f"the feature {unquoted(name)}", part))
    scores = {}
    for name, numbers in values.items():
        if not numbers:
            raise ValueError(f"the feature {unquoted(name)} has no value")
        if len(numbers) == 1:
            scores[name] = numbers[0]
        else:
            scores |= {f"{name}.{place}": x for place, x in enumerate(numbers, start=1)}
    return scores


class JsonLines:
    """Lines `{"id": ..., "text": ..., "scores": {"name": number}}`; other fields are kept."""

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None

    def take_header(self, line: str) -> bool:
        return False

    def entry(self, number: int, line: str) -> Entry:
        record = parsed_object(line)
        key = record.get("id")
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if not isinstance(key, str):
            raise ValueError(f'"id" must be a string or a whole number, not {quoted(key)}')
        if not isinstance(record.get("text"), str):
            raise ValueError(f'"text" must be a string, not {quoted(record.get("text"))}')
        scores = record.get("scores", {})
        if not isinstance(scores, dict):
            raise ValueError(f'"scores" must be an object of numbers, not {quoted(scores)}')
        values = {name: _number(f"the score {unquoted(name)}", x) for name, x in scores.items()}
        self._names = frozenset(values) if self._names is None else self._names
        if odd := sorted(self._names ^ values.keys()):
            has = "has no score" if odd[0] in self._names else "alone has a score"
            raise ValueError(f"{has} {unquoted(odd[0])}; all hypotheses must have the same ones")
        return Entry(_checked_key(key), record["text"], values, number, record)

    def header(self, new: tuple[str, ...]) -> str | None:
        return None

    def line(self, entry: Entry, new: Mapping[str, float]) -> str:
        rounded = {name: float(written_number(value)) for name, value in new.items()}
        scores = entry.source.get("scores", {}) | rounded
        return json.dumps(entry.source | {"scores": scores}, ensure_ascii=False)

    def best(self, entry: Entry) -> str:
        return _keyed(entry)

    def finish(self) -> None:
        pass


class Table:
    """Fields between tabs under a header with the columns id and text; all others are scores."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def take_header(self, line: str) -> bool:
        columns = line.split("\t")
        for name in ("id", "text"):
            if name not in columns:
                raise ValueError(
                    f"has no column {name}; the first line names the columns: id, text and the "
                    f"scores, with tabs between them, not {quoted(line)}"
                )
        twice = [name for name in columns if columns.count(name) > 1 or not name]
        if twice:
            raise ValueError(f"the column {quoted(twice[0])} is there twice or has no name")
        self._columns = columns
        return True

    def entry(self, number: int, line: str) -> Entry:
        fields = line.split("\t")
        if len(fields) != len(self._columns):
            raise ValueError(f"has {len(fields)} fields, the header {len(self._columns)}")
        record = dict(zip(self._columns, fields, strict=True))
        scores = {
            name: _number(f"the column {unquoted(name)}", value)
            for name, value in record.items()
            if name not in ("id", "text")
        }
        return Entry(_checked_key(record["id"]), record["text"], scores, number, record)

    def header(self, new: tuple[str, ...]) -> str | None:
        return "\t".join(dict.fromkeys([*self._columns, *new]))

    def line(self, entry: Entry, new: Mapping[str, float]) -> str:
        written = {name: written_number(value) for name, value in new.items()}
        return "\t".join((entry.source | written).values())

    def best(self, entry: Entry) -> str:
        return _keyed(entry)

    def finish(self) -> None:
        pass


def parsed_object(line: str) -> dict[str, Any]:
    """A line of JSON; ValueError if it is no object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ValueError(f"is not a JSON object: {quoted(line)}")
    # JSON can spell what no text file holds, and what could not be written again.
    if "\\u0000" in line:
        raise ValueError("holds a NUL")
    if _SURROGATE.search(line) and _SURROGATE_ITSELF.search(json.dumps(record, ensure_ascii=False)):
        raise ValueError("holds half a surrogate pair, which is no character")
    return record


def written_number(value: float) -> str:
    """A score as it is written everywhere.

    >>> written_number(-12.3456789)
    '-12.345679'
    """
    return f"{value:.6f}"


def _number(what: str, value: Any) -> float:
    try:
        number = float("" if isinstance(value, bool) else value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{what} must be a finite number, not {quoted(value)}")
    return number


def _checked_key(key: str) -> str:
    if not key or key.split() != [key]:
        raise ValueError(f"the id must be a word without spaces, not {quoted(key)}")
    return key


def _keyed(entry: Entry) -> str:
    return " ".join([entry.utterance, *entry.words])
