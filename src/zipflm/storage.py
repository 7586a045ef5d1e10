"""Atomic files and folders, locks, and checksums.

Files are written under a temporary name, flushed to disk, then renamed. A file with its final name
is therefore always complete, even after a crash or a power cut.
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
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from os import PathLike
from pathlib import Path

from filelock import FileLock, Timeout

TEMPORARY_REMEDY = "free some space, or set TMPDIR to a folder on another disk"

_UNFINISHED = ".unfinished-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_hash(path: str | PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder. On a clean exit it is renamed to `path`.

    The temporary name is fixed, so the next process overwrites leftovers of a killed process. It
    keeps the suffix of `path`, because some libraries use it to choose the format.
    """
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        yield unfinished
        _apply_umask(unfinished, umask())
        _flush(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush_folder(path.parent)


def atomic_write_text(path: Path, text: str) -> None:
    """Replace the content of a file. Readers see either the old content or the new."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def report_full_disk(path: Path, remedy: str) -> Iterator[None]:
    """Add `path` and a remedy to full-disk errors. In nested calls, the outermost applies."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        full = OSError(f"{path}: {os.strerror(error.errno)} while writing it; {remedy}")
        full.errno = error.errno
        raise full from None


def umask() -> int:
    """Return the umask of this process."""
    # It can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _apply_umask(path: Path, mask: int) -> None:
    # safetensors creates files that only the owner can read.
    with suppress(OSError):  # the file system has no permissions
        path.chmod(0o666 & ~mask)


def _flush(path: Path) -> None:
    # Called before a rename, because a rename can reach the disk before the data.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system can fsync a folder
        _flush(folder)


# Errors on file systems without locks: NFS without a lock daemon, Lustre without `-o flock`.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class InUse(ValueError):
    """Another process is writing to the folder."""


@contextmanager
def locked(path: Path, name: str) -> Iterator[bool]:
    """Hold the lock file `path`. Raises InUse, naming the holder, if another process has it.

    `name` is the locked folder, for messages. Missing parent folders are created, and removed at
    the end if they are empty. Yields True, or False with a warning on file systems without locks.
    """
    created = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{name}: is a file or inside one; choose a folder") from None
    lock, pid = FileLock(path, blocking=False, fallback_to_soft=False), os.getpid()
    try:
        is_locked = _acquire(lock, path, name)
        try:
            with suppress(OSError):  # the disk is full
                since = datetime.now().astimezone().isoformat(" ", "seconds")
                holder = f"process {pid} on {platform.node()}, since {since}"
                path.write_text(holder, encoding="utf-8")
            yield is_locked
        finally:
            if os.getpid() == pid:  # not in a forked child
                path.unlink(missing_ok=True)  # before another process can take it
                lock.release()
    finally:
        for folder in created:
            with suppress(OSError):  # not empty
                folder.rmdir()


def _acquire(lock: FileLock, path: Path, name: str) -> bool:
    try:
        path.touch()  # filelock reports some errors of creating the file as a timeout
        lock.acquire()
    except Timeout:
        raise InUse(
            f"{name}: in use by {_holder(path)}; wait until it finishes, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
            raise ValueError(
                f"{name}: not writable ({error.strerror}); choose another folder"
            ) from None
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{path.parent}: this file system has no locks ({error.strerror}); make sure that no "
            "other process writes there",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):  # the holder has just taken or released the lock
        return "another process"


LOCK = ".lock"
"""Lock file inside a folder. It names the process that is writing there."""


def refuse_existing(out: str | PathLike[str]) -> None:
    """Raise FileExistsError if `out` is the current folder, a file, or not empty."""
    out = Path(out)
    if out.exists() and out.samefile(os.curdir):
        raise FileExistsError(f"{out}: is the current folder; choose another folder")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out}: already exists; choose another folder or remove it first")


@contextmanager
def new_folder(out: str | PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` on a clean exit and removed on an error.

    Removes what a killed process left next to `out`. Raises InUse if another process is creating
    the same folder.
    """
    out = Path(out)
    refuse_existing(out)
    final = Path(os.path.realpath(out))  # a folder cannot be renamed to a symbolic link
    lock = final.with_name(f".{final.name}.lock")
    remedy = "nothing was kept; free some space or choose another folder"
    with report_full_disk(out, remedy), locked(lock, str(out)) as is_locked:
        refuse_existing(out)  # another process may have created it before we got the lock
        if is_locked:
            for left in final.parent.glob(glob.escape(f".{final.name}{_UNFINISHED}") + "*"):
                shutil.rmtree(left, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}{_UNFINISHED}", dir=final.parent))
        try:
            yield unfinished
            unfinished.chmod(0o777 & ~umask())
            finish_folder(unfinished, final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def finish_folder(unfinished: Path, final: Path) -> None:
    """Flush a complete folder to disk and rename it. The umask applies to its files."""
    mask = umask()
    for parent, _, names in os.walk(unfinished, topdown=False):
        for name in names:
            _apply_umask(Path(parent) / name, mask)
            _flush(Path(parent) / name)
        _flush_folder(Path(parent))
    os.rename(unfinished, final)
    _flush_folder(final.parent)


@contextmanager
def sole_writer(folder: Path) -> Iterator[bool]:
    """Lock `folder` for writing and remove leftovers of killed processes. See `locked`."""
    real = Path(os.path.realpath(folder))
    with locked(real / LOCK, str(folder)) as is_locked:
        if is_locked:
            for path in real.glob(f"{_UNFINISHED}*"):
                path.unlink(missing_ok=True)
        yield is_locked


CHECKSUMS = "checksums.json"
_VERIFIED = ".verified.json"
"""Records the checksum, size, times and inode that each file had when it was last verified."""


def seal(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write `checksums.json` for all files in a folder. `known` has those already computed."""
    known = known or {}
    excluded = (CHECKSUMS, _VERIFIED)
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name not in excluded)
    sums = {name: known.get(name) or file_hash(folder / name) for name in names}
    atomic_write_text(folder / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def read_checksums(folder: Path, needed: Sequence[str]) -> dict[str, str]:
    """Return checksums by file name. Raises ValueError if a `needed` file has none."""
    from zipflm.settings import read_value

    path = folder / CHECKSUMS
    sums: dict[str, str] = read_value(dict[str, str], path)
    for name in needed:
        if name not in sums:
            raise ValueError(f"{path}: has no entry for {name}; the folder is incomplete")
    return sums


def require_unchanged(folder: Path, name: str, sums: Mapping[str, str]) -> None:
    """Raise ValueError if a file is missing or does not match its checksum in `sums`."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path}: missing, but listed in {CHECKSUMS}")
    if file_hash(path) != sums[name]:
        raise ValueError(f"{path}: damaged; it does not match its checksum in {CHECKSUMS}")


def verify_once(folder: Path, name: str, sums: Mapping[str, str]) -> None:
    """Like `require_unchanged`, but skip a file that has not changed since it was last verified."""
    path, record = folder / name, folder / _VERIFIED
    try:
        known = json.loads(record.read_bytes())
    except (OSError, ValueError):  # missing or damaged
        known = None
    known = known if isinstance(known, dict) else {}
    fingerprint: list[int | str] = [sums[name]]
    if path.is_file():
        stat = path.stat()
        fingerprint += [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    if known.get(name) == fingerprint:
        return
    require_unchanged(folder, name, sums)
    with suppress(OSError):  # a read-only folder
        atomic_write_text(record, json.dumps(known | {name: fingerprint}, indent=1) + "\n")
