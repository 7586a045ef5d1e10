"""Numbered lines of input files, and output files that are whole or absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from zipflm.data.text import STDIN, UTF_8, encoding_hint, line_groups, shown
from zipflm.messages import lines
from zipflm.storage import atomic_write, report_full_disk


def numbered_lines(name: str, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Every line of a plain or compressed file, or of `-`, without its line end, from number 1 on.

    Raises ValueError for what is not text of that encoding, and OSError if there is no such file.
    """
    if name != STDIN and not os.path.exists(name):
        raise FileNotFoundError(f"{name}: no such file")
    if os.path.isdir(name):
        raise IsADirectoryError(f"{name}: a folder, not a file")
    lines = (line for group, _ in line_groups(name, encoding=encoding) for line in group)
    for number, line in enumerate(lines, start=1):
        yield number, decoded(name, number, line)


def decoded(name: str, number: int, line: bytes) -> str:
    """The text of a line; ValueError, naming file and line, if it is none."""
    if b"\0" in line:
        raise ValueError(
            f"{shown(name)}: line {number}: a NUL byte; {encoding_hint(line)}, or mend the text"
        )
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{shown(name)}: line {number}: not UTF-8 at byte {error.start} of the line; "
            f"{encoding_hint(line)}, or convert the text (iconv -t utf-8)"
        ) from None


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class Writable(Protocol):
    """What text can be written to."""

    def write(self, text: str, /) -> Any: ...


def check_destination(option: str, name: str | None, read: Iterable[str | None] = ()) -> None:
    """ValueError for a place that cannot be written to, before hours of work are spent on it, and
    for one of the files that are read, which would be lost."""
    if name is None or name == STDIN:
        return
    path = Path(name)
    if name.endswith(COMPRESSED):
        raise ValueError(
            f"{option} {name}: would be written uncompressed; leave out {path.suffix} and "
            "compress the file afterwards"
        )
    if path.is_dir():
        raise ValueError(f"{option} {name}: a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {name}: there is no folder {path.parent}; make it first")
    for other in read:
        if other is not None and path.is_file() and os.path.exists(other) and path.samefile(other):
            raise ValueError(f"{option} {name}: is read, and would be lost; name another file")


@contextmanager
def destination(name: str | None) -> Iterator[Writable]:
    """A text file to write lines to: standard output for None or `-`, else the file of that name,
    which appears when it is complete."""
    if name is None or name == STDIN:
        yield _Terminal() if sys.stdout.isatty() else sys.stdout
        sys.stdout.flush()
        return
    path = Path(name)
    with report_full_disk(path, "free some space, or name a file on another disk"):
        if path.exists() and not path.is_file():
            # A pipe or a device such as /dev/null is written to, never replaced.
            with _opened(path) as file:
                yield file
            return
        # A link keeps pointing where it points.
        with atomic_write(Path(os.path.realpath(path))) as unfinished, _opened(unfinished) as file:
            yield file


class _Terminal:
    """Standard output, where words out of anybody's files must not move the cursor."""

    def write(self, text: str) -> None:
        sys.stdout.write("\t".join(map(lines, text.split("\t"))))


def _opened(path: Path) -> TextIO:
    return open(path, "w", encoding="utf-8", newline="\n")
