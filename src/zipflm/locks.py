"""One process at a time writes into a folder; a second one is told who the first is.

The system holds the lock for as long as the process lives, so that a crash leaves none behind. The
file beside it says who holds it; it is removed when the lock is given back, and one that a killed
process left is taken over.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from zipflm.records import as_json, read_value


class InUse(ValueError):
    """A folder that another process is writing into."""


@dataclass(frozen=True, kw_only=True)
class _Holder:
    process: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} ({self.command}, since {self.since})"


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; InUse, naming the holder, if another process does.

    `what` is the folder that it stands for, in the user's words.
    """
    descriptor = _take(path, what)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, (as_json(_myself()) + "\n").encode())
        yield
    finally:
        # While it is still held: nobody can have taken it over.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _take(path: Path, what: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _lock(descriptor):
            os.close(descriptor)
            raise InUse(
                f"{what}: in use by {_holder(path)}; wait until it has ended, or choose another "
                "folder"
            )
        # The holder before may have removed the file between our opening and locking it.
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> bool:
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


def _myself() -> _Holder:
    return _Holder(
        process=os.getpid(),
        host=platform.node(),
        command=" ".join(["zipflm", *sys.argv[1:2]]),
        since=datetime.now().isoformat(" ", "seconds"),
    )


def _holder(path: Path) -> str:
    try:
        return str(read_value(_Holder, path))
    except (OSError, ValueError):  # just taken, and not yet written
        return "another process"
