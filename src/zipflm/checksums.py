"""`checksums.json`: SHA-256 of every file of a folder, so that damage is noticed.

Checkpoints and data folders have one. Files are compared with it before they are used. `Verified`
remembers the size and times of a file that was compared, so that a large one is read only once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zipflm.files import file_hash, write_whole
from zipflm.records import read_value

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
