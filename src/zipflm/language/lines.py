"""Lines of a text file with their numbers, decoded strictly: a bad one is named by its number."""

from __future__ import annotations

import os
from collections.abc import Iterator

from zipflm.data.text import STDIN, UTF_8, encoding_hint, line_groups, shown


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
