"""N-best lists in four formats:

    kaldi   utt7-1 a cat sat                       scores in companion files, `utt7-1 -12.5`
    moses   7 ||| a cat sat ||| lm= -9 ||| -12.5
    jsonl   {"id": "utt7", "text": "a cat sat", "scores": {"ac": -12.5}}
    tsv     a header with id, text and the names of the scores

A `Format` parses a line into an `Entry` and formats an entry with new scores as a line, keeping the
other fields. Kaldi lines have no field for scores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zipflm.data.text import COMPRESSED, shown
from zipflm.language.files import numbered_lines
from zipflm.messages import quoted, unquoted

WORDS, TOTAL = "words", "total"
"""Reserved names of scores: the number of words, and the weighted sum."""

# Kaldi names hypotheses utterance-1, utterance-2, ... A number with a leading zero is not a rank.
_RANKED = re.compile(r"(?P<utterance>\S+)-[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One hypothesis of a list."""

    utterance: str
    text: str
    scores: Mapping[str, float]
    line: int
    source: Any
    """The parsed line: the hypothesis name (Kaldi), a list of fields (Moses) or a dict."""

    @property
    def words(self) -> list[str]:
        return self.text.split()


class Format:
    """Parses and formats the lines of a list."""

    def parse(self, number: int, line: str) -> Entry | None:
        """Parse line `number`. Return None for a header. Raises ValueError if it is invalid."""
        raise NotImplementedError

    def format_header(self, new: tuple[str, ...]) -> str | None:
        """Return the header of a list with these scores added, or None if there is no header."""
        return None

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        """Format an entry with these scores added or replaced."""
        raise NotImplementedError

    def format_best(self, entry: Entry) -> str:
        """Format an entry for a 1-best list."""
        return " ".join([entry.utterance, *entry.words])


class Kaldi(Format):
    """Lines `utterance-N words`; scores are in companion files, `utterance-N number`."""

    def __init__(self, scores: Mapping[str, str], costs: Mapping[str, str]) -> None:
        """`scores` and `costs` map score names to companion files. Costs are negated."""
        self._scores = {name: (file, _companion(file, 1.0)) for name, file in scores.items()}
        self._scores |= {name: (file, _companion(file, -1.0)) for name, file in costs.items()}

    def parse(self, number: int, line: str) -> Entry:
        key, text = [*line.split(maxsplit=1), "", ""][:2]
        ranked = _RANKED.fullmatch(key)
        if ranked is None:
            raise ValueError(
                f"{unquoted(key)} does not have the form UTTERANCE-RANK, with ranks from 1 (utt7-1)"
            )
        for file, values in self._scores.values():
            if key not in values:
                raise ValueError(f"{shown(file)} has no score of {unquoted(key)}; add it")
        scores = {name: values[key] for name, (_, values) in self._scores.items()}
        return Entry(ranked["utterance"], text.strip(), scores, number, key)

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        # The format has no field for scores.
        return f"{entry.source} {entry.text}".rstrip()


def _companion(file: str, sign: float) -> dict[str, float]:
    """Read the scores of a companion file by hypothesis."""
    scores = {}
    for number, line in numbered_lines(file):
        key, value = [*line.split(maxsplit=1), "", ""][:2]
        if key in scores:
            raise ValueError(f"{shown(file)}: line {number}: {unquoted(key)} is repeated")
        scores[key] = sign * _number(f"{shown(file)}: line {number}: the score", value)
    return scores


class Moses(Format):
    """Lines `sentence ||| words ||| name= number ... ||| total`, possibly with more fields."""

    def parse(self, number: int, line: str) -> Entry:
        fields = [field.strip() for field in line.split("|||")]
        if len(fields) < 4:
            raise ValueError(
                f"has {len(fields)} of at least 4 fields: id ||| words ||| features ||| total"
            )
        scores = _features(fields[2])
        scores[TOTAL] = _number("the total", fields[3])
        return Entry(fields[0], fields[1], scores, number, fields)

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        key, text, features, total, *rest = entry.source
        for name, value in new.items():
            if name == TOTAL:
                total = format_score(value)
            else:
                features = f"{features} {name}= {format_score(value)}".strip()
        return " ||| ".join([key, text, features, total, *rest])

    def format_best(self, entry: Entry) -> str:
        # One sentence per line, without an id, as Moses writes it.
        return " ".join(entry.words)


def _features(text: str) -> dict[str, float]:
    """Parse `a= 1 b= 2 3` as scores a, b.1 and b.2. Old lists have `a: 1` instead of `a= 1`."""
    values: dict[str, list[float]] = {}
    name: str | None = None
    for part in text.replace("=", "= ").split():
        if part[-1] in "=:" and len(part) > 1:
            name = part[:-1]
            values[name] = []
        elif name is None:
            raise ValueError(f"{quoted(part)} has no name before it; write name= number")
        else:
            values[name].append(_number(f"the feature {unquoted(name)}", part))
    scores = {}
    for name, numbers in values.items():
        if len(numbers) == 1:
            scores[name] = numbers[0]
        else:
            scores |= {f"{name}.{index}": x for index, x in enumerate(numbers, start=1)}
    return scores


class JsonLines(Format):
    """Lines `{"id": ..., "text": ..., "scores": {"name": number}}`; other fields are kept."""

    def parse(self, number: int, line: str) -> Entry:
        record = _parse_object(line)
        key, text, scores = record.get("id"), record.get("text"), record.get("scores", {})
        if not (isinstance(key, str | int) and isinstance(text, str) and isinstance(scores, dict)):
            raise ValueError(
                'needs an "id" (a string or an integer), a "text" (a string) and, if any, "scores" '
                f"(an object of numbers): {quoted(line)}"
            )
        values = {name: _number(f"the score {unquoted(name)}", x) for name, x in scores.items()}
        return Entry(str(key), text, values, number, record)

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        rounded = {name: float(format_score(value)) for name, value in new.items()}
        scores = entry.source.get("scores", {}) | rounded
        return json.dumps(entry.source | {"scores": scores}, ensure_ascii=False)


class Table(Format):
    """Tab-separated columns with a header: id, text and scores."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def parse(self, number: int, line: str) -> Entry | None:
        fields = line.split("\t")
        if number == 1:
            if not {"id", "text"} <= set(fields):
                raise ValueError(
                    "must be a header with id, text and the names of the scores, separated by "
                    f"tabs, not {quoted(line)}"
                )
            if len(set(fields)) < len(fields):
                raise ValueError(f"must have each column once, not {quoted(line)}")
            self._columns = fields
            return None
        if len(fields) != len(self._columns):
            raise ValueError(f"has {len(fields)} fields, but the header has {len(self._columns)}")
        record = dict(zip(self._columns, fields, strict=True))
        scores = {
            name: _number(f"the column {unquoted(name)}", value)
            for name, value in record.items()
            if name not in ("id", "text")
        }
        return Entry(record["id"], record["text"], scores, number, record)

    def format_header(self, new: tuple[str, ...]) -> str | None:
        return "\t".join(dict.fromkeys([*self._columns, *new]))

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        scores = {name: format_score(value) for name, value in new.items()}
        return "\t".join((entry.source | scores).values())


def _parse_object(line: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ValueError(f"is not a JSON object: {quoted(line)}")
    if "\\u" in line:
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError(f"has half of a surrogate pair; remove it: {quoted(line)}") from None
    return record


def format_score(value: float) -> str:
    return f"{value:.6f}"


def _number(label: str, value: Any) -> float:
    try:
        number = float("" if isinstance(value, bool) else value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{label} must be a finite number, not {quoted(value)}")
    return number


_OTHER_FORMATS: dict[str, type[Format]] = {"moses": Moses, "jsonl": JsonLines, "tsv": Table}


def open_format(
    name: str,
    format: str | None,
    scores: Mapping[str, str] | None = None,
    costs: Mapping[str, str] | None = None,
) -> Format:
    """Return the format of a file, by default that of its name. For Kaldi, `scores` and `costs` map
    score names to companion files."""
    format = format or _ending(name) or ""
    if format == "kaldi":
        return Kaldi(scores or {}, costs or {})
    if format not in _OTHER_FORMATS:
        problem = f"--format {format}" if format else f"{shown(name)}: needs --format"
        raise ValueError(f"{problem}: choose from kaldi, {', '.join(_OTHER_FORMATS)}")
    if scores or costs:
        raise ValueError(
            f"--scores, --costs: only for --format kaldi; leave them out, because {format} lists "
            "contain their scores"
        )
    return _OTHER_FORMATS[format]()


def read_lists(name: str, format: Format) -> list[list[Entry]]:
    """Read a file of n-best lists. Return the entries of each utterance.

    Raises ValueError for invalid input, with the file and line.
    """
    lists: dict[str, list[Entry]] = {}
    for entry in _entries(name, format):
        lists.setdefault(entry.utterance, []).append(entry)
    if not lists:
        raise ValueError(f"{shown(name)}: contains no hypotheses; use another file")
    return list(lists.values())


def _entries(name: str, format: Format) -> Iterator[Entry]:
    for number, line in numbered_lines(name):
        try:
            entry = format.parse(number, line)
        except ValueError as error:
            raise ValueError(f"{shown(name)}: line {number}: {error}") from None
        if entry is not None:
            yield entry


def read_references(name: str, format: Format) -> dict[str, list[str]]:
    """Read reference transcripts for lists in this format. Return the words by utterance id.

    Files ending in .jsonl or .tsv have ids and texts as in n-best lists. Other files have one
    utterance per line: its id and words, or for Moses only the words, where line N belongs to id
    N - 1.
    """
    if _ending(name) is not None:
        texts = [(e.line, e.utterance, e.words) for e in _entries(name, open_format(name, None))]
    else:
        lines = [(number, line.split()) for number, line in numbered_lines(name)]
        if isinstance(format, Moses):
            return {str(index): words for index, (_, words) in enumerate(lines)}
        texts = [(number, words[0], words[1:]) for number, words in lines if words]
    references: dict[str, list[str]] = {}
    for number, utterance, words in texts:
        if utterance in references:
            raise ValueError(
                f"{shown(name)}: line {number}: utterance {unquoted(utterance)} is repeated"
            )
        references[utterance] = words
    return references


def _ending(name: str) -> str | None:
    """Return the format that belongs to a file name, if any."""
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return next((format for format in ("jsonl", "tsv") if name.endswith(f".{format}")), None)
