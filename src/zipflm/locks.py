"""One process at a time writes into a folder; a second one is told who the first is.

The operating system holds the lock for as long as the process lives, so a crash leaves none behind.
The lock file names the holder; it is removed when the lock is released, and one that a killed
process left is simply taken over.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from zipflm.records import as_json, read_value

# How a file system says that it has no locks: NFS without a lock daemon, Lustre without `-o flock`.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_TRIES = 100

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


class InUse(ValueError):
    """Another process is writing into the folder."""


@dataclass(frozen=True, kw_only=True)
class _Holder:
    process: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} ({self.command}, since {self.since})"


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`; InUse, naming the holder, if another process has it.

    `what` is the folder that the lock stands for, in the user's words. Missing folders above the
    lock file are made, and removed in the end if nothing else was put there. Where the file system
    has no locks there is a warning and the value is False: another process may be at work.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        descriptor, is_locked = _take(path, what)
        _held.add(descriptor)
        try:
            _sign(descriptor)
            yield is_locked
        finally:
            if descriptor in _held:  # not in a forked child: the lock is its parent's
                _held.remove(descriptor)
                # Before it is released, after which the file may be somebody else's.
                with suppress(OSError):
                    path.unlink()
                os.close(descriptor)
    finally:
        for folder in made:
            with suppress(OSError):  # it is not empty, or gone
                folder.rmdir()


def _take(path: Path, what: str) -> tuple[int, bool]:
    """The descriptor of the lock file, and whether it could be locked."""
    _let_go_in_forked_children()
    while True:
        descriptor = _open(path, what)
        try:
            is_free = _lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            # Of the folder, not of `what`: a run's checkpoints are to be mentioned once.
            warnings.warn(
                f"{path.parent}: its file system has no locks ({error.strerror}); make sure "
                "yourself that no other process writes there",
                RuntimeWarning,
                stacklevel=2,
            )
            return descriptor, False
        # The holder before us may have removed the file after we opened it.
        if is_free and _is_same_file(descriptor, path):
            return descriptor, True
        os.close(descriptor)
        if not is_free:
            raise InUse(
                f"{what}: in use by {_holder(path)}; wait until it has ended, or choose another "
                "folder"
            )


def _open(path: Path, what: str) -> int:
    for _ in range(_TRIES):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            # A file in the way, or the holder before us has just removed the folder, left empty.
            for parent in path.parents:
                if parent.exists() and not parent.is_dir():
                    raise ValueError(f"{parent}: is a file; give a folder as --out") from None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise ValueError(
                f"{what}: cannot be written to ({error.strerror}); give a folder that can"
            ) from None
    raise ValueError(f"{what}: cannot be made; give a folder that can")


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> bool:
    """Whether the lock was free, and is ours now."""
    try:
        import fcntl
    except ImportError:  # Windows
        return _lock_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_on_windows(descriptor: int) -> bool:
    import msvcrt

    # Far behind the text, which others may want to read.
    os.lseek(descriptor, 1 << 20, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return True


@cache
def _let_go_in_forked_children() -> None:
    """A forked child shares its parent's locks, and would keep them after the parent was killed."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


def _sign(descriptor: int) -> None:
    """Write who we are into the lock file; on a full disk the lock must do without."""
    script = Path(sys.argv[0])
    name = script.parent.name if script.stem == "__main__" else script.stem
    holder = _Holder(
        process=os.getpid(),
        host=platform.node(),
        command=" ".join([name or "python", *sys.argv[1:2]]),
        since=datetime.now().astimezone().isoformat(" ", "seconds"),
    )
    with suppress(OSError):
        os.truncate(descriptor, 0)
        os.write(descriptor, (as_json(holder) + "\n").encode())


def _holder(path: Path) -> str:
    try:
        return str(read_value(_Holder, path))
    except (OSError, ValueError):  # it has taken the lock and not signed yet, or just released it
        return "another process"
