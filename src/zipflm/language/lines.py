"""Lines of a text file with their numbers, decoded strictly: a bad one is named by its number."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator

from zipflm.data.text import STDIN, chunks, shown


def numbered_lines(name: str) -> Iterator[tuple[int, str]]:
    """Every line of a plain or compressed file, or of `-`, without its line end, from number 1 on.

    A carriage return at the end of a line goes too, and a byte order mark before the first one.
    Raises ValueError for what is not UTF-8 text, and OSError if there is no such file.
    """
    if name != STDIN and not os.path.exists(name):
        raise FileNotFoundError(f"{name}: no such file")
    if os.path.isdir(name):
        raise IsADirectoryError(f"{name}: a folder, not a file")
    number = 0
    for chunk in chunks(name):
        lines = chunk.read().split(b"\n")
        if lines[-1] == b"":  # behind the last line end there is no line
            lines.pop()
        for line in lines:
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, _decoded(name, number, line)


def _decoded(name: str, number: int, line: bytes) -> str:
    if b"\0" in line:
        raise ValueError(f"{shown(name)}: line {number}: holds a NUL byte; not a text file")
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{shown(name)}: line {number}: not UTF-8 at byte {error.start} of the line; "
            "convert the file (iconv -t utf-8)"
        ) from None
