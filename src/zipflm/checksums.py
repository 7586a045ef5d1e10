"""`checksums.json`: SHA-256 of every file of a folder, so that damage is noticed in time.

Checkpoints and data folders have one. Files are compared with it before they are used. `Verified`
remembers what the system says of a file that was compared, so that a large one is read only once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zipflm.files import file_hash, write_whole
from zipflm.records import as_json, read_value

CHECKSUMS = "checksums.json"
_VERIFIED = ".verified.json"

# A file that is changed twice within the resolution of its clock looks unchanged after the second
# time, so one that was changed just now is not remembered.
_YOUNG_SECONDS = 2.0


def seal(
    folder: Path,
    known: Mapping[str, str] | None = None,
    leaving_out: Callable[[str], bool] = lambda name: False,
) -> None:
    """Write the checksums of all files of a folder, of which some may be `known` already.

    Files whose names are to be left out, such as those that are about to be removed, are none of
    the folder from now on.
    """
    known = known or {}
    others = (CHECKSUMS, _VERIFIED)
    there = [p.name for p in folder.iterdir() if p.is_file() and p.name not in others]
    names = sorted(name for name in there if not leaving_out(name))
    sums = {name: known.get(name) or file_hash(folder / name) for name in names}
    write_whole(folder / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def read_checksums(folder: Path, needed: Sequence[str]) -> dict[str, str]:
    """Checksums by file name; ValueError if a file that the folder needs has none."""
    path = folder / CHECKSUMS
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


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A file as the system describes it; whatever is written to it changes `ctime`."""

    size: int
    mtime: int
    ctime: int
    inode: int
    sha256: str


class Verified:
    """Files of a folder that were compared with their checksums, also by earlier processes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / _VERIFIED

    def require_unchanged(self, name: str, sums: Mapping[str, str]) -> None:
        """As the function of that name, but a file that did not change since is not read again."""
        seen = self._read()
        before, started = self._look(name, sums[name]), time.time()
        if before is not None and seen.get(name) == before:
            return
        require_unchanged(self._folder, name, sums)
        # What was changed while we read it may differ in a part that we had read by then.
        if before is None or before != self._look(name, sums[name]):
            return
        if started - before.ctime / 1e9 < _YOUNG_SECONDS:
            return
        # Where nothing can be written, it is read again next time.
        with suppress(OSError):
            remembered = _Remembered(files=seen | {name: before})
            write_whole(self._path, as_json(remembered) + "\n")

    def _look(self, name: str, sha256: str) -> _Seen | None:
        try:
            found = os.stat(self._folder / name)
        except OSError:
            return None
        return _Seen(
            size=found.st_size,
            mtime=found.st_mtime_ns,
            ctime=found.st_ctime_ns,
            inode=found.st_ino,
            sha256=sha256,
        )

    def _read(self) -> dict[str, _Seen]:
        try:
            remembered: _Remembered = read_value(_Remembered, self._path)
        except (OSError, ValueError):  # none yet, or damaged: read the files again
            return {}
        return dict(remembered.files)


@dataclass(frozen=True, kw_only=True)
class _Remembered:
    files: Mapping[str, _Seen]
