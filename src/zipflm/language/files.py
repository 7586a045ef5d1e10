"""Reading of numbered lines, and atomic output files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from zipflm.data.text import COMPRESSED, STDIN, line_groups, shown
from zipflm.messages import escape_controls
from zipflm.storage import atomic_write, report_full_disk


def numbered_lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a plain or compressed file, or of stdin (`-`), with numbers from 1."""
    lines = (line for group, _ in line_groups(name) for line in group)
    for number, line in enumerate(lines, start=1):
        yield number, decode_line(name, number, line)


def decode_line(name: str, number: int, line: bytes, other_remedies: str = "") -> str:
    """Decode a line. Raises ValueError with file and line number if it is not UTF-8 text."""
    if b"\0" in line:
        problem, remedy = "a NUL byte", "decompress it, or fix the text"
    else:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 at byte {error.start} of the line"
            remedy = "decompress it, or convert the text (iconv -t utf-8)"
    raise ValueError(f"{shown(name)}: line {number}: {problem}; {remedy}{other_remedies}")


class Writable(Protocol):
    def write(self, text: str, /) -> Any: ...


def check_destination(option: str, name: str | None, inputs: Iterable[str] = ()) -> None:
    """Raise ValueError if an output file cannot be written or is also an input."""
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
        raise ValueError(f"{option} {name}: no folder {path.parent}; create it first")
    for file in inputs:
        if path.is_file() and os.path.exists(file) and os.path.samefile(name, file):
            raise ValueError(f"{option} {name}: would overwrite an input; choose another file")


@contextmanager
def destination(name: str | None) -> Iterator[Writable]:
    """Open stdout for None or `-`, otherwise a text file. A regular file only appears when it is
    complete."""
    if name is None or name == STDIN:
        yield _Terminal() if sys.stdout.isatty() else sys.stdout
        sys.stdout.flush()
        return
    path = Path(name)
    with report_full_disk(path, "free some space, or name a file on another disk"):
        if path.exists() and not path.is_file():
            # Write to pipes and devices such as /dev/null instead of replacing them.
            with _open(path) as file:
                yield file
            return
        # Follow symbolic links instead of replacing them.
        with atomic_write(Path(os.path.realpath(path))) as unfinished, _open(unfinished) as file:
            yield file


class _Terminal:
    """Stdout with control characters escaped, because text can come from any file."""

    def write(self, text: str) -> None:
        sys.stdout.write(escape_controls(text))


def _open(path: Path) -> TextIO:
    return open(path, "w", encoding="utf-8", newline="\n")
