"""Texts by URL, `s3://`, `gs://`, `hdfs://`, `file://` and what else fsspec reads.

fsspec and the library of an object store are imported when a text needs them, and named with their
pip line if they are missing. Whatever such a library raises becomes an OSError that names the text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_URL = re.compile(r"[a-z][a-z0-9+]+://.")  # one letter is a drive

# What to install; fsspec itself names modules, which are not always called like their packages.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow"}
_PACKAGES |= {"abfs": "adlfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp"}


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def expand_url(pattern: str) -> list[str]:
    """The URLs that a URL or glob stands for, sorted; none if there is no such."""
    with _reaching(pattern):
        files, path = _found(pattern)
        if not any(mark in path for mark in "*?["):
            return [pattern] if files.exists(path) else []
        return sorted(files.unstrip_protocol(name) for name in files.glob(path))


def is_folder(name: str) -> bool:
    with _reaching(name):
        files, path = _found(name)
        return bool(files.isdir(path))


def url_size(name: str) -> int | None:
    """Bytes as stored, if that is known."""
    with _reaching(name):
        files, path = _found(name)
        size: int | None = files.info(path).get("size")
        return size


@contextmanager
def open_url(name: str, block: int) -> Iterator[IO[bytes]]:
    """The stored bytes, to be read and searched; so many are fetched at once."""
    with _reaching(name):
        files, path = _found(name)
        # Its own files lack some ways of reading that Python's have, each kind other ones.
        with (
            files.open(path, "rb", block_size=block) as file,
            io.BufferedReader(file, block) as all,
        ):
            yield all


def read_range(name: str, start: int, size: int) -> bytes:
    """So many bytes, fewer at the end, in one request."""
    with _reaching(name):
        files, path = _found(name)
        data: bytes = files.cat_file(path, start=start, end=start + size)
        return data


def same_file(name: str) -> str:
    """What two spellings of one text have in common."""
    with _reaching(name):
        files, path = _found(name)
        return path if "file" in _protocols(files) else str(files.unstrip_protocol(path))


def _found(name: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    protocol = name.split("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"{name}: needs fsspec: pip install fsspec") from None
    try:
        files, path = fsspec.core.url_to_fs(name)
        return files, str(path)
    except ImportError as error:
        package = _PACKAGES.get(protocol) or error.name or protocol
        raise ValueError(f"{name}: needs the package {package}: pip install {package}") from None
    except ValueError as error:
        raise ValueError(
            f"{name}: {error}; texts are files, or URLs such as s3://, gs://, hdfs:// and file://"
        ) from None


def _protocols(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Errors of any library as ones that the user can read."""
    try:
        yield
    except (ValueError, FileNotFoundError, OSError):
        raise
    except Exception as error:  # of one of many libraries, each with its own
        raise OSError(f"{name}: cannot be read: {type(error).__name__}: {error}") from error
