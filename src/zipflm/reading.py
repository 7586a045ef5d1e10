"""Files of a folder that anybody may have changed: what is no file is refused, not waited for.

Opening a pipe waits for somebody to write into it, and a device may never end. A file that the user
names on the command line may well be a pipe, and is not read through here.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path


def require_file(path: str | PathLike[str]) -> None:
    """ValueError if a folder, a pipe, a device or a link to nothing stands in a file's place.

    Whether there is anything at all, opening it will tell.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise ValueError(f"{os.fspath(path)}: not a file; put the file back, or remove it")


def read_file(path: Path, most: int | None = None) -> bytes:
    """All of a file; ValueError if it is none, or has more than `most` bytes."""
    require_file(path)
    if most is not None and path.stat().st_size > most:
        raise ValueError(f"{path}: larger than {most} bytes, which no such file is")
    return path.read_bytes()
