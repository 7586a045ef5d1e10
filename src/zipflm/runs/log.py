"""`log.jsonl`: one `Report` or `Validation` a line, appended while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zipflm.files import write_whole
from zipflm.reading import read_file
from zipflm.records import as_json, load_object, parse
from zipflm.runs.records import LogLine, Validation


def append_line(path: Path, line: LogLine) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(as_json(line, LogLine, indent=None) + "\n")


def read_lines(path: Path) -> list[LogLine]:
    """All lines of a log; empty if there is none.

    A last line without its end is one that is being written, or that a killed process left; any
    other that cannot be read is a ValueError with its number.
    """
    try:
        text = read_file(path)
    except FileNotFoundError:
        return []
    *complete, _ = text.split(b"\n")
    return [_parse(path, number, line) for number, line in enumerate(complete, start=1)]


def curve_of(lines: Sequence[LogLine]) -> list[Validation]:
    """The validations that make a curve: those on a part of the valid set where there are any,
    because part and whole are not equally hard; else all of them."""
    found = [line for line in lines if isinstance(line, Validation)]
    return [line for line in found if line.share < 1] or found


def trim(path: Path, update: int) -> None:
    """Drop what was logged after `update`, and a last line that was cut short."""
    if not path.exists():
        return
    kept = [line for line in read_lines(path) if line.update <= update]
    write_whole(path, "".join(as_json(line, LogLine, indent=None) + "\n" for line in kept))


def _parse(path: Path, number: int, line: bytes) -> LogLine:
    try:
        parsed: LogLine = parse(LogLine, load_object(line), "")
    except ValueError as error:
        raise ValueError(f"{path}: line {number}: damaged or of another release: {error}") from None
    return parsed
