"""Files and folders that are there whole or not at all, and what a full disk is called.

Everything this package writes goes through here: under another name first, flushed to the disk,
then renamed. So what has its final name is complete, whatever moment the process or the machine
died, and what it replaces stays until then.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

TEMPORARY_REMEDY = "free some space, or let TMPDIR name a folder that has some"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_hash(path: str | PathLike[str]) -> str:
    """SHA-256 of what a file holds."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write to, in the same folder, that becomes `path` at the end.

    It is always the same one, so that what a killed process left is overwritten by the next, and
    it ends as `path` does, by which some libraries choose a format.
    """
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        yield unfinished
        _flush(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush_rename(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Replace what a file holds; it has its old content or the new one at any moment."""
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


def refuse_existing(out: str | PathLike[str]) -> None:
    """FileExistsError if `out` is anything but free or an empty folder elsewhere."""
    out = Path(out)
    if out.exists() and out.samefile(os.curdir):
        raise FileExistsError(f"{out} is the folder you are in; name a new one with --out")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another --out or remove it first")


@contextmanager
def new_folder(out: str | PathLike[str]) -> Iterator[Path]:
    """A folder to fill that gets the name `out` on a clean exit, and vanishes on an error."""
    out = Path(out)
    refuse_existing(out)
    # A folder cannot be renamed to a link, but to what the link points to.
    final = Path(os.path.realpath(out))
    made = _make_parents(final)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}.unfinished-", dir=final.parent))
    try:
        with naming_full_disk(out, "nothing was kept; free some space or choose another --out"):
            yield unfinished
            unfinished.chmod(0o777 & ~_umask())
            _flush_tree(unfinished)
            os.rename(unfinished, final)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        for parent in made:
            # Somebody else may have put something there since, or removed it.
            with suppress(OSError):
                parent.rmdir()
        raise
    _flush_rename(final.parent)


class DiskFull(OSError):
    """What was being written and what to do, in words."""


@contextmanager
def naming_full_disk(path: Path, remedy: str) -> Iterator[None]:
    """Say in DiskFull what could not be written, which the system's own error does not.

    The outermost of several has the word: it knows what the user asked for.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, DiskFull) and error.errno not in _FULL:
            raise
        reason = os.strerror(error.errno or errno.ENOSPC)
        full = DiskFull(f"{path}: {reason} while writing it; {remedy}")
        full.errno = error.errno
        raise full from None


def _make_parents(path: Path) -> list[Path]:
    """Make the folders above a path; those that were missing, innermost first."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _umask() -> int:
    # There is no way to ask but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            _flush(Path(parent) / name)
        _flush(Path(parent))


def _flush(path: Path) -> None:
    """Onto the disk with it: a rename may get there before the content does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_rename(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    try:
        _flush(folder)
    except OSError:
        pass
