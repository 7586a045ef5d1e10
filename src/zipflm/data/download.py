"""Fetching one file: several mirrors, resumed where it broke off, checked by its SHA-256.

A file under its final name is whole and right; what is under way is called `NAME.part`.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from zipflm.files import file_hash

_TIMEOUT_SECONDS = 30
_READ_BYTES = 1 << 18
_TRIES = 3
# Some hosts turn away what calls itself Python.
_AGENT = "Mozilla/5.0 (compatible; zipflm)"

Progress = Callable[[int, int | None], None]


class _Meter:
    """Reports how far a file has come, whichever try it is: it may start again from 0."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._position = progress, 0

    def at(self, position: int, total: int | None) -> None:
        self._progress(position - self._position, total)
        self._position = position


class _Broken(Exception):
    """The connection ended too early; what came is kept."""


def fetch(
    path: Path,
    mirrors: Sequence[str],
    sha256: str,
    progress: Progress = lambda done, total: None,
) -> Path:
    """The file at `path`, from the first mirror that has it unless it is there already.

    `progress` gets the bytes just received, fewer than none if they are fetched again, and the
    file's size. Raises OSError, saying what to
    fetch by hand and where to put it, if no mirror delivers.
    """
    if path.exists():
        _check(path, sha256)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    faults = []
    meter = _Meter(progress)
    for url in mirrors:
        fault = _try(url, path, sha256, meter)
        if fault is None:
            return path
        faults.append(f"{url} ({fault})")
    raise OSError(
        f"could not download {path.name}: {'; '.join(faults)}. Fetch it by hand, put it at "
        f"{path.absolute()} and run the command again"
    )


def _check(path: Path, sha256: str) -> None:
    digest = file_hash(path)
    if digest != sha256:
        raise ValueError(
            f"{path}: its SHA-256 is {digest}, expected {sha256}; remove it and fetch it again"
        )


def _try(url: str, path: Path, sha256: str, meter: _Meter) -> str | None:
    """Fetch from one mirror; what went wrong, if anything."""
    part = path.with_name(path.name + ".part")
    fault = ""
    for _ in range(_TRIES):
        try:
            _receive(url, part, meter)
        except _Broken as error:
            fault = str(error)
            continue
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__
        except ConnectionError as error:
            fault = str(error)
            continue
        digest = file_hash(part)
        if digest == sha256:
            os.replace(part, path)
            return None
        part.unlink()
        return f"its SHA-256 is {digest}, expected {sha256}"
    return fault


def _receive(url: str, part: Path, meter: _Meter) -> None:
    """Append what is missing to `part`."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": _AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing, or the part is of another file: hash decides
            error.close()
            return
        raise
    with response, open(part, "ab") as file:
        if response.status != 206:  # the host does not resume
            file.truncate(0)
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        meter.at(have, total)
        while data := response.read(_READ_BYTES):
            file.write(data)
            have += len(data)
            meter.at(have, total)
    if total is not None and have < total:
        raise _Broken(f"broke off after {have} of {total} bytes")
