"""Exclusive locks on folders. A second process gets an error that names the holder.

The operating system holds the lock for as long as the process lives, so a killed process leaves
none. The lock file names the holder and is removed when the lock is released.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

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
                path.write_text(_own_name(), encoding="utf-8")
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


def _own_name() -> str:
    script = Path(sys.argv[0])
    name = script.parent.name if script.stem == "__main__" else script.stem
    command = " ".join([name or "python", *sys.argv[1:2]])
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {platform.node()} ({command}, since {since})"


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):  # it has just taken or released the lock
        return "another process"
