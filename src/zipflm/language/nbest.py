"""N-best lists: utterances with their hypotheses and scores, read one utterance at a time.

    kaldi   utt7-1 a cat sat                       scores in companion files, `utt7-1 -12.5`
    moses   7 ||| a cat sat ||| lm= -9 ||| -12.5
    jsonl   {"id": "utt7", "text": "a cat sat", "scores": {"ac": -12.5}}
    tsv     a header with id, text and the names of the scores

The hypotheses of an utterance follow each other. Memory is that of one utterance, and the names of
those that were there, so that one that comes back is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never, get_args

from zipflm.data.text import UTF_8, check_encoding, shown
from zipflm.language.lines import numbered_lines
from zipflm.language.nbest_formats import (
    WORDS,
    Entry,
    Format,
    FormatName,
    JsonLines,
    Kaldi,
    Moses,
    Table,
)
from zipflm.quoting import unquoted

_ENDINGS: dict[str, FormatName] = {".jsonl": "jsonl", ".tsv": "tsv"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class NBest:
    """One list; its `format` also writes it."""

    def __init__(
        self,
        name: str,
        format: str | None = None,
        *,
        scores: Mapping[str, str] | None = None,
        costs: Mapping[str, str] | None = None,
        encoding: str = UTF_8,
    ) -> None:
        """`format` may be left out where the file's name tells it. `scores` and `costs` are the
        companion files of a Kaldi list, by the names of what they hold."""
        self.name: str = name
        self.encoding: str = check_encoding(encoding)
        self.format_name: FormatName = _checked_format(name, format)
        self.format: Format = _new_format(self.format_name, scores or {}, costs or {})

    def utterances(self) -> Iterator[list[Entry]]:
        """The entries of every utterance, in the order of the list; it can be read once.

        Raises ValueError, naming file and line, for what cannot be understood.
        """
        begun: dict[str, int] = {}
        together: list[Entry] = []
        for entry in self._entries():
            if together and entry.utterance == together[0].utterance:
                together.append(entry)
                continue
            if entry.utterance in begun:
                raise ValueError(
                    f"{shown(self.name)}: line {entry.line}: utterance {unquoted(entry.utterance)} "
                    f"began at line {begun[entry.utterance]}, and others came between; put the "
                    "hypotheses of an utterance together"
                )
            begun[entry.utterance] = entry.line
            if together:
                yield together
            together = [entry]
        if not together:
            raise ValueError(f"{shown(self.name)}: holds no hypothesis")
        yield together

    def _entries(self) -> Iterator[Entry]:
        for number, line in numbered_lines(self.name, self.encoding):
            try:
                if number == 1 and self.format.take_header(line):
                    continue
                entry = self.format.entry(number, line)
                if WORDS in entry.scores:
                    raise ValueError(
                        f"has a score {WORDS}, which is the number of words; rename it"
                    )
            except ValueError as error:
                raise ValueError(f"{shown(self.name)}: line {number}: {error}") from None
            yield entry
        self.format.finish()


def read_references(
    name: str, format_name: FormatName, encoding: str = UTF_8
) -> dict[str, list[str]]:
    """The words that were really said, by utterance.

    A file that ends in .jsonl or .tsv has the ids and texts of such a list. Any other has one
    utterance a line: its id and its words; or for a list of Moses's, whose ids count sentences
    from 0, the words alone, in that order.
    """
    references: dict[str, list[str]] = {}
    is_numbered = format_name == "moses"
    for number, utterance, words in _references(name, encoding, numbered=is_numbered):
        if utterance in references:
            raise ValueError(
                f"{shown(name)}: line {number}: utterance {unquoted(utterance)} is there twice"
            )
        references[utterance] = words
    if not any(references.values()):
        raise ValueError(f"{shown(name)}: holds no words to compare hypotheses with")
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
            raise ValueError(f"{shown(name)}: line {number}: empty; expected an id and its words")


def _checked_format(name: str, format: str | None) -> FormatName:
    found = format or _ending(name)
    for known in get_args(FormatName):
        if found == known:
            return found  # type: ignore[return-value]
    said = f"--format {format}" if format else f"{shown(name)}: of what --format is it"
    raise ValueError(f"{said}: choose from {', '.join(get_args(FormatName))}")


def _ending(name: str) -> FormatName | None:
    """The format that a file's name tells."""
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return next((format for end, format in _ENDINGS.items() if name.endswith(end)), None)


def _new_format(name: FormatName, scores: Mapping[str, str], costs: Mapping[str, str]) -> Format:
    if name == "kaldi":
        if both := sorted(scores.keys() & costs.keys()):
            raise ValueError(f"{unquoted(both[0])} is in --scores and in --costs; rename one")
        return Kaldi(scores, costs)
    if scores or costs:
        raise ValueError(
            f"--scores and --costs name the files that belong to a list of --format kaldi; one of "
            f"--format {name} holds its scores itself"
        )
    match name:
        case "moses":
            return Moses()
        case "jsonl":
            return JsonLines()
        case "tsv":
            return Table()
        case _:
            assert_never(name)
