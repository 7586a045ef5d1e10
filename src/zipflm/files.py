"""Atomic file writes, and errors for a full disk.

Everything this package writes is written under another name first, flushed to the disk, then
renamed. So a file with its final name is complete, whenever the process or the machine died, and
the file it replaces stays until then. `folders` does the same for folders.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

TEMPORARY_REMEDY = "free some space, or let TMPDIR name a folder that has some"

_UNFINISHED = ".unfinished-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_hash(path: str | PathLike[str]) -> str:
    """SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write to, in the same folder, that becomes `path` at the end.

    It is always the same one, so that the next process overwrites what a killed one left, and has
    the suffix of `path`, by which some libraries choose a format.
    """
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        yield unfinished
        _apply_umask(unfinished, umask())
        _flush(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    flush_rename(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content; it has the old content or the new one at any moment."""
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


def clear_unfinished(folder: Path) -> None:
    """Remove the files that killed processes left unfinished in this folder, into which no other
    process may be writing."""
    for path in list(folder.glob(f"{_UNFINISHED}*")):
        path.unlink(missing_ok=True)


class DiskFull(OSError):
    """The disk is full; the message says what was being written and what to do."""


@contextmanager
def naming_full_disk(path: Path, remedy: str) -> Iterator[None]:
    """Raise DiskFull, naming `path`, if the disk is full; the outermost of several decides."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, DiskFull) and error.errno not in _FULL:
            raise
        reason = os.strerror(error.errno or errno.ENOSPC)
        full = DiskFull(f"{path}: {reason} while writing it; {remedy}")
        full.errno = error.errno
        raise full from None


def flush_tree(folder: Path) -> None:
    """Flush a folder and everything in it, with the modes that the umask allows."""
    mask = umask()
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            _apply_umask(Path(parent) / name, mask)
            _flush(Path(parent) / name)
        flush_rename(Path(parent))


def umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _apply_umask(path: Path, mask: int) -> None:
    """safetensors creates files that only their owner can read."""
    with suppress(OSError):  # a file system without modes
        path.chmod(0o666 & ~mask)


def _flush(path: Path) -> None:
    """fsync first: a rename can reach the disk before the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_rename(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    with suppress(OSError):
        _flush(folder)
