"""Atomic files and folders, locks, and checksums.

Everything this package writes is written under another name, flushed to the disk, then renamed. So
a file with its final name is complete, whenever the process or the machine died, and the file it
replaces stays until then.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

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
    _flush_rename(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content; it has the old content or the new one at any moment."""
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


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


def _flush_rename(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    with suppress(OSError):
        _flush(folder)


# Errors of file systems without locks: NFS without a lock daemon, Lustre without `-o flock`.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class InUse(ValueError):
    """Another process is writing into the folder."""


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`; InUse, naming the holder, if another process has it.

    `what` is the folder that the lock stands for, as the user wrote it. Missing parent folders are
    made, and removed in the end if they are empty. On a file system without locks there is a
    warning and the value is False: another process may be writing.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{what}: is a file, or in one; give a folder as --out") from None
    lock, pid = FileLock(path, blocking=False, fallback_to_soft=False), os.getpid()
    try:
        is_locked = _acquire(lock, path, what)
        try:
            with suppress(OSError):  # the disk is full
                since = datetime.now().astimezone().isoformat(" ", "seconds")
                name = f"process {pid} on {platform.node()}, since {since}"
                path.write_text(name, encoding="utf-8")
            yield is_locked
        finally:
            if os.getpid() == pid:  # not in a forked child
                path.unlink(missing_ok=True)  # before another process can take it
                lock.release()
    finally:
        for folder in made:
            with suppress(OSError):  # not empty
                folder.rmdir()


def _acquire(lock: FileLock, path: Path, what: str) -> bool:
    try:
        lock.acquire()
    except Timeout:
        raise InUse(
            f"{what}: in use by {_holder(path)}; wait until it has ended, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ValueError(
                f"{what}: cannot be written to ({error.strerror}); give a folder that can"
            ) from None
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{path.parent}: its file system has no locks ({error.strerror}); make sure yourself "
            "that no other process writes there",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):  # it has just taken or released the lock
        return "another process"


LOCK = ".lock"
"""File in a folder that names the one process that may write there."""


def refuse_existing(out: str | PathLike[str]) -> None:
    """FileExistsError if `out` is anything but free or an empty folder elsewhere."""
    out = Path(out)
    clear_abandoned(out)
    if out.exists() and out.samefile(os.curdir):
        raise FileExistsError(f"{out} is the folder you are in; name a new one")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another folder or remove it first")


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
        unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}{_UNFINISHED}", dir=final.parent))
        try:
            yield unfinished
            unfinished.chmod(0o777 & ~umask())
            give_its_name(unfinished, final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def give_its_name(unfinished: Path, final: Path) -> None:
    """Rename a folder that is complete, once all of it is on the disk."""
    mask = umask()
    for parent, _, names in os.walk(unfinished, topdown=False):
        for name in names:
            _apply_umask(Path(parent) / name, mask)
            _flush(Path(parent) / name)
        _flush_rename(Path(parent))
    os.rename(unfinished, final)
    _flush_rename(final.parent)


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
        if is_locked:  # what killed processes left
            for path in place.glob(f"{_UNFINISHED}*"):
                path.unlink(missing_ok=True)
        yield is_locked


def _lock_beside(final: Path) -> Path:
    return final.with_name(f".{final.name}.lock")


def _remove_abandoned(final: Path) -> None:
    """Remove what killed processes left of a folder that they had not finished."""
    for path in final.parent.glob(glob.escape(f".{final.name}{_UNFINISHED}") + "*"):
        shutil.rmtree(path, ignore_errors=True)


CHECKSUMS = "checksums.json"
_VERIFIED = ".verified.json"

# A file that is changed twice within the resolution of its clock looks unchanged after the second
# time, so one that was changed just now is not remembered.
_YOUNG_SECONDS = 2.0


def seal(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the checksums of all files of a folder, of which some may be `known` already."""
    known = known or {}
    others = (CHECKSUMS, _VERIFIED)
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name not in others)
    sums = {name: known.get(name) or file_hash(folder / name) for name in names}
    write_whole(folder / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def read_checksums(folder: Path, needed: Sequence[str]) -> dict[str, str]:
    """Checksums by file name; ValueError if a file that the folder needs has none."""
    path = folder / CHECKSUMS
    from zipflm.settings import read_value

    sums: dict[str, str] = read_value(dict[str, str], path)
    for name in needed:
        if name not in sums:
            raise ValueError(f"{path}: says nothing of {name}; the folder is not whole")
    return sums


def require_unchanged(folder: Path, name: str, sums: Mapping[str, str]) -> None:
    """ValueError, naming the file, unless it is there and as it was when the folder was made."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path}: missing, but {CHECKSUMS} names it")
    if file_hash(path) != sums[name]:
        raise ValueError(f"{path}: damaged; its checksum is not the one in {CHECKSUMS}")


class Verified:
    """Files of a folder that were compared with their checksums, also by earlier processes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / _VERIFIED

    def require_unchanged(self, name: str, sums: Mapping[str, str]) -> None:
        """As the function of that name, but a file that did not change since is not read again."""
        path, known, started = self._folder / name, self._read(), time.time()
        before = _fingerprint(path, sums[name])
        if before is not None and known.get(name) == before:
            return
        require_unchanged(self._folder, name, sums)
        # A change while we read the file may be in a part that we had read by then.
        is_stable = before is not None and before == _fingerprint(path, sums[name])
        if not is_stable or started - path.stat().st_ctime < _YOUNG_SECONDS:
            return
        with suppress(OSError):  # a folder that cannot be written to
            write_whole(self._path, json.dumps(known | {name: before}, indent=1) + "\n")

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError):  # none yet, or damaged
            return {}
        return known if isinstance(known, dict) else {}


def _fingerprint(path: Path, sha256: str) -> list[int | str] | None:
    """Changes with whatever is written to the file; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, sha256]
