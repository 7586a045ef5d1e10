"""N-best lists in four formats, read one utterance at a time:

    kaldi   utt7-1 a cat sat                       scores in companion files, `utt7-1 -12.5`
    moses   7 ||| a cat sat ||| lm= -9 ||| -12.5
    jsonl   {"id": "utt7", "text": "a cat sat", "scores": {"ac": -12.5}}
    tsv     a header with id, text and the names of the scores

The hypotheses of an utterance must be consecutive. A `Format` parses a line into an `Entry` and
formats an entry with new scores as a line, keeping the other fields. Kaldi lines have no field for
scores.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from zipflm.data.text import UTF_8, check_encoding, shown
from zipflm.language.files import COMPRESSED, numbered_lines
from zipflm.messages import quoted, unquoted

FormatName = Literal["kaldi", "moses", "jsonl", "tsv"]

WORDS, TOTAL = "words", "total"
"""Reserved names of scores: the number of words, and the weighted sum."""

# Kaldi names hypotheses utterance-1, utterance-2, ... A number with a leading zero is not a rank.
_RANKED = re.compile(r"(?P<utterance>\S+)-[1-9][0-9]*")
_ENDINGS: dict[str, FormatName] = {".jsonl": "jsonl", ".tsv": "tsv"}


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
    """Parses and formats the lines of a list. `NBest` adds the file and the line number to error
    messages."""

    def parse_header(self, line: str) -> bool:
        """Parse the first line of a list. Return True if it is a header."""
        return False

    def parse_entry(self, number: int, line: str) -> Entry:
        """Parse line `number`. Raises ValueError if it is invalid."""
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
        self._files = {name: (file, 1.0, numbered_lines(file)) for name, file in scores.items()}
        self._files |= {name: (file, -1.0, numbered_lines(file)) for name, file in costs.items()}

    def parse_entry(self, number: int, line: str) -> Entry:
        key, text = [*line.split(maxsplit=1), "", ""][:2]
        ranked = _RANKED.fullmatch(key)
        if ranked is None:
            raise ValueError(
                f"{unquoted(key)} does not have the form UTTERANCE-RANK, with ranks from 1 (utt7-1)"
            )
        scores = {
            name: sign * _next_score(file, lines, key)
            for name, (file, sign, lines) in self._files.items()
        }
        return Entry(ranked["utterance"], text.strip(), scores, number, key)

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        # The format has no field for scores.
        return f"{entry.source} {entry.text}".rstrip()


def _next_score(file: str, lines: Iterator[tuple[int, str]], key: str) -> float:
    number, line = next(lines, (0, ""))
    if number == 0:
        raise ValueError(f"{shown(file)} has no more lines; it needs one per hypothesis")
    where, fields = f"{shown(file)}: line {number}", line.split()
    if len(fields) != 2 or fields[0] != key:
        raise ValueError(
            f"{where} should be {unquoted(key)} and a number, not {quoted(line)}; both files must "
            "have the same hypotheses in the same order (sort both)"
        )
    return _number(where, fields[1])


class Moses(Format):
    """Lines `sentence ||| words ||| name= number ... ||| total`, possibly with more fields."""

    def parse_entry(self, number: int, line: str) -> Entry:
        fields = [field.strip() for field in line.split("|||")]
        if len(fields) < 4:
            raise ValueError(
                f"has {len(fields)} of at least 4 fields: id ||| words ||| features ||| total"
            )
        key = _check_key(fields[0])
        scores = _features(fields[2])
        scores[TOTAL] = _number("the total", fields[3])
        return Entry(key, fields[1], scores, number, fields)

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

    def parse_entry(self, number: int, line: str) -> Entry:
        record = parse_object(line)
        key = record.get("id")
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)
        if not isinstance(key, str):
            raise ValueError(f'"id" must be a string or an integer, not {quoted(key)}')
        if not isinstance(record.get("text"), str):
            raise ValueError(f'"text" must be a string, not {quoted(record.get("text"))}')
        scores = record.get("scores", {})
        if not isinstance(scores, dict):
            raise ValueError(f'"scores" must be an object of numbers, not {quoted(scores)}')
        values = {name: _number(f"the score {unquoted(name)}", x) for name, x in scores.items()}
        return Entry(_check_key(key), record["text"], values, number, record)

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        rounded = {name: float(format_score(value)) for name, value in new.items()}
        scores = entry.source.get("scores", {}) | rounded
        return json.dumps(entry.source | {"scores": scores}, ensure_ascii=False)


class Table(Format):
    """Tab-separated columns with a header: id, text and scores."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def parse_header(self, line: str) -> bool:
        columns = line.split("\t")
        for name in ("id", "text"):
            if name not in columns:
                raise ValueError(
                    f"has no column {quoted(name)}; the first line must be a header with id, text "
                    f"and the names of the scores, separated by tabs, not {quoted(line)}"
                )
        invalid = [name for name in columns if columns.count(name) > 1 or not name]
        if invalid:
            raise ValueError(f"the column {quoted(invalid[0])} is repeated or has no name")
        self._columns = columns
        return True

    def parse_entry(self, number: int, line: str) -> Entry:
        fields = line.split("\t")
        if len(fields) != len(self._columns):
            raise ValueError(f"has {len(fields)} fields, but the header has {len(self._columns)}")
        record = dict(zip(self._columns, fields, strict=True))
        scores = {
            name: _number(f"the column {unquoted(name)}", value)
            for name, value in record.items()
            if name not in ("id", "text")
        }
        return Entry(_check_key(record["id"]), record["text"], scores, number, record)

    def format_header(self, new: tuple[str, ...]) -> str | None:
        return "\t".join(dict.fromkeys([*self._columns, *new]))

    def format_line(self, entry: Entry, new: Mapping[str, float]) -> str:
        scores = {name: format_score(value) for name, value in new.items()}
        return "\t".join((entry.source | scores).values())


def parse_object(line: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ValueError(f"is not a JSON object: {quoted(line)}")
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


def _check_key(key: str) -> str:
    if not key or key.split() != [key]:
        raise ValueError(f"the id must not be empty or contain whitespace, not {quoted(key)}")
    return key


class NBest:
    """A file of n-best lists."""

    def __init__(
        self,
        name: str,
        format: str | None = None,
        *,
        scores: Mapping[str, str] | None = None,
        costs: Mapping[str, str] | None = None,
        encoding: str = UTF_8,
    ) -> None:
        """`format` is inferred from the file name by default. For Kaldi, `scores` and `costs` map
        score names to companion files."""
        self.name: str = name
        self.encoding: str = check_encoding(encoding)
        format = format or _ending(name)
        if format not in get_args(FormatName):
            problem = f"--format {format}" if format else f"{shown(name)}: needs --format"
            raise ValueError(f"{problem}: choose from {', '.join(get_args(FormatName))}")
        self.format_name: FormatName = format  # type: ignore[assignment]
        self.format: Format = _new_format(self.format_name, scores or {}, costs or {})

    def num_lines(self) -> int | None:
        """Return the number of lines of an uncompressed file, for progress bars; None for
        compressed files and standard input."""
        if not os.path.isfile(self.name) or self.name.endswith(COMPRESSED):
            return None
        with open(self.name, "rb") as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))

    def utterances(self) -> Iterator[list[Entry]]:
        """Yield the list of entries of each utterance. Can only be called once.

        Raises ValueError for invalid input, with the file and line.
        """
        first_lines: dict[str, int] = {}
        entries: list[Entry] = []
        for entry in self._entries():
            if entries and entry.utterance == entries[0].utterance:
                entries.append(entry)
                continue
            if entry.utterance in first_lines:
                raise ValueError(
                    f"{shown(self.name)}: line {entry.line}: utterance {unquoted(entry.utterance)} "
                    f"already started at line {first_lines[entry.utterance]}; put the hypotheses "
                    "of an utterance on consecutive lines"
                )
            first_lines[entry.utterance] = entry.line
            if entries:
                yield entries
            entries = [entry]
        if not entries:
            raise ValueError(f"{shown(self.name)}: the file is empty; use another file")
        yield entries

    def _entries(self) -> Iterator[Entry]:
        for number, line in numbered_lines(self.name, self.encoding):
            try:
                if number == 1 and self.format.parse_header(line):
                    continue
                entry = self.format.parse_entry(number, line)
                if WORDS in entry.scores:
                    raise ValueError(
                        f"the score name {WORDS} is reserved for the word count; rename it"
                    )
            except ValueError as error:
                raise ValueError(f"{shown(self.name)}: line {number}: {error}") from None
            yield entry


def read_references(
    name: str, format_name: FormatName, encoding: str = UTF_8
) -> dict[str, list[str]]:
    """Read reference transcripts. Return the words by utterance id.

    Files ending in .jsonl or .tsv have ids and texts as in n-best lists. Other files have one
    utterance per line: its id and words, or for Moses only the words, where line N belongs to id
    N - 1.
    """
    references: dict[str, list[str]] = {}
    is_numbered = format_name == "moses"
    for number, utterance, words in _references(name, encoding, numbered=is_numbered):
        if utterance in references:
            raise ValueError(
                f"{shown(name)}: line {number}: utterance {unquoted(utterance)} is repeated"
            )
        references[utterance] = words
    if not any(references.values()):
        raise ValueError(f"{shown(name)}: contains no words; use a file of transcripts")
    return references


def _references(
    name: str, encoding: str, *, numbered: bool
) -> Iterator[tuple[int, str, list[str]]]:
    ending = _ending(name)
    if ending is not None:
        for entries in NBest(name, ending, encoding=encoding).utterances():
            yield from ((entry.line, entry.utterance, entry.words) for entry in entries)
        return
    for number, line in numbered_lines(name, encoding):
        words = line.split()
        if numbered:
            yield number, str(number - 1), words
        elif words:
            yield number, words[0], words[1:]
        else:
            raise ValueError(f"{shown(name)}: line {number}: empty; expected an id and words")


def _ending(name: str) -> FormatName | None:
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return next((format for end, format in _ENDINGS.items() if name.endswith(end)), None)


def _new_format(name: FormatName, scores: Mapping[str, str], costs: Mapping[str, str]) -> Format:
    if name == "kaldi":
        return Kaldi(scores, costs)
    if scores or costs:
        raise ValueError(
            f"--scores, --costs: only for --format kaldi; leave them out, because {name} lists "
            "contain their scores"
        )
    return {"moses": Moses, "jsonl": JsonLines, "tsv": Table}[name]()
