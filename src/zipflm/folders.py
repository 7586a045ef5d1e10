"""Atomic folders, and folders that one process at a time writes into.

Both take a lock first. So unfinished files and folders belong to a process that was killed, and are
removed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from zipflm.files import clear_unfinished, flush_rename, flush_tree, naming_full_disk, umask
from zipflm.locks import locked

LOCK = ".lock"
"""File in a folder that names the one process that may write there."""


def refuse_existing(out: str | PathLike[str]) -> None:
    """FileExistsError if `out` is anything but free or an empty folder elsewhere."""
    out = Path(out)
    clear_abandoned(out)
    if out.exists() and out.samefile(os.curdir):
        raise FileExistsError(f"{out} is the folder you are in; name a new one with --out")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another --out or remove it first")


@contextmanager
def new_folder(out: str | PathLike[str]) -> Iterator[Path]:
    """A folder to fill that gets the name `out` on a clean exit, and vanishes on an error.

    InUse, naming the other process, if one is about to make the same folder.
    """
    out = Path(out)
    refuse_existing(out)
    # A folder cannot be renamed to a link, but to what the link points to.
    final = Path(os.path.realpath(out))
    lock = _lock_beside(final)
    remedy = "nothing was kept; free some space or choose another --out"
    with naming_full_disk(out, remedy), locked(lock, str(out)) as is_locked:
        refuse_existing(out)  # another process may have made it before we had the lock
        if is_locked:
            _remove_abandoned(final)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}.unfinished-", dir=final.parent))
        try:
            yield unfinished
            unfinished.chmod(0o777 & ~umask())
            give_its_name(unfinished, final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def give_its_name(unfinished: Path, final: Path) -> None:
    """Rename a folder that is complete, once all of it is on the disk."""
    flush_tree(unfinished)
    os.rename(unfinished, final)
    flush_rename(final.parent)


def clear_abandoned(out: str | PathLike[str]) -> None:
    """Remove what a killed process left next to the folder `out`.

    Readers do this too: a process killed just after the folder got its name leaves a lock file, and
    no later writer takes it, since a finished folder is not made again.
    """
    final = Path(os.path.realpath(out))
    lock = _lock_beside(final)
    if not lock.is_file():
        return
    # A living process may hold it, and the folder may be read-only.
    with suppress(ValueError, OSError), locked(lock, str(out)) as is_locked:
        if is_locked:
            _remove_abandoned(final)


@contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Be the only process that writes into `folder`; InUse, naming the other, if there is one.

    The folder is made, and removed in the end if it is empty. The value is False where the file
    system has no locks (see `locked`).
    """
    place = Path(os.path.realpath(folder))
    with locked(place / LOCK, str(folder)) as is_locked:
        if is_locked:
            clear_unfinished(place)
        yield is_locked


def _lock_beside(final: Path) -> Path:
    return final.with_name(f".{final.name}.lock")


def _remove_abandoned(final: Path) -> None:
    """Remove what killed processes left of a folder that they had not finished."""
    # As `mkdtemp` names them, and no longer: `NAME.unfinished-x` may be a folder of its own.
    abandoned = re.compile(rf"\.{re.escape(final.name)}\.unfinished-[a-z0-9_]{{8}}")
    for path in final.parent.iterdir():
        if abandoned.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
