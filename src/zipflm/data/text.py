"""Read text as chunks of complete lines, from files, URLs or standard input, and expand globs.

Compressed files are decompressed, and other encodings are converted to UTF-8. Empty files are
errors. URLs are read with fsspec. Local files are not: fsspec cannot open pipes and accepts a
truncated .zst.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any

from zipflm.messages import unquoted

CHUNK_BYTES = 1 << 22

STDIN = "-"
UTF_8 = "utf-8"
_STORED_BYTES = 1 << 12
"""Bytes of a .zst file to decompress per step. Four bytes can expand to 128 KiB, so this limits the
memory that a malicious file can use."""
_READ_BYTES = 1 << 20  # maximum bytes per read from other files
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_URL = re.compile(r"[a-z][a-z0-9+]+://.")  # a single letter is a Windows drive
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""Raised when decompressing damaged files."""


@dataclass(frozen=True)
class Chunk:
    """Complete lines of one source, starting at byte `start` of its uncompressed UTF-8 text."""

    source: str
    start: int
    size: int
    data: bytes | None
    """The text, or None for an uncompressed UTF-8 file or URL, which `read` opens."""
    consumed: int
    """Number of stored (possibly compressed) bytes of this chunk, for progress bars."""

    def read(self) -> bytes:
        if self.data is not None:
            return self.data
        if is_url(self.source):
            with _remote(self.source) as (files, path):
                data: bytes = files.cat_file(path, start=self.start, end=self.start + self.size)
        else:
            with open(self.source, "rb", buffering=0) as file:
                file.seek(self.start)
                data = file.read(self.size)
        if len(data) != self.size:
            raise ValueError(f"{self.source}: truncated while being read")
        return data


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


@contextmanager
def _remote(name: str) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL and the path in it.

    Exceptions other than ValueError and OSError become an OSError that names the URL.
    """
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"{name}: {error}; install the package for such URLs, or use a file"
        ) from None
    try:
        yield filesystem, path
    except (ValueError, OSError):
        raise
    except Exception as error:  # each file system raises different exceptions
        raise OSError(f"{name}: could not be read: {type(error).__name__}: {error}") from error


def expand(patterns: Iterable[str | PathLike[str]]) -> list[str]:
    """Return the files for names, URLs and globs. `-` is standard input.

    Raises FileNotFoundError if a name or glob matches no file, IsADirectoryError for a local
    folder, and ValueError if `-` is repeated.
    """
    names: list[str] = []
    for pattern in (os.fspath(pattern) for pattern in patterns):
        matches = _expand_url(pattern) if is_url(pattern) else _expand_path(pattern)
        if not matches:
            raise FileNotFoundError(f"{pattern}: no such file")
        names += matches
    if names.count(STDIN) > 1:
        raise ValueError("-: standard input can be read only once")
    return names


def _expand_url(pattern: str) -> list[str]:
    with _remote(pattern) as (files, path):
        if any(char in path for char in "*?["):
            matches = files.glob(path)
        else:
            matches = [path] if files.exists(path) else []
        return sorted(files.unstrip_protocol(name) for name in matches)


def _expand_path(pattern: str) -> list[str]:
    if pattern == STDIN or os.path.exists(pattern):
        names = [pattern]
    else:
        names = sorted(glob.glob(pattern, recursive=True))
    for name in names:
        if os.path.isdir(name):
            raise IsADirectoryError(f"{name}: is a folder; pass its files, e.g. '{name}/*.txt'")
    return names


def stored_size(names: Iterable[str]) -> int | None:
    """Return the total size in bytes as stored, or None if unknown (standard input, a pipe)."""
    total = 0
    for name in names:
        if is_url(name):
            with _remote(name) as (files, path):
                size = files.info(path).get("size")
        else:
            size = os.path.getsize(name) if os.path.isfile(name) else None
        if size is None:
            return None
        total += size
    return total


def check_encoding(encoding: str) -> str:
    """Return the canonical name of an encoding. Raises ValueError if it is unknown or not for text.

    >>> check_encoding("UTF8"), check_encoding("latin1")
    ('utf-8', 'iso8859-1')
    """
    try:
        "".encode(encoding)  # rejects codecs that are not for text
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise ValueError(
            f"encoding={unquoted(encoding)}: unknown; try latin-1, cp1252 or utf-16"
        ) from None


def chunks(
    name: str, size: int = CHUNK_BYTES, *, encoding: str = UTF_8, errors: str = "strict"
) -> Iterator[Chunk]:
    """Yield the chunks of one source in order, each of about `size` bytes and ending at a line end.

    In encodings other than UTF-8, invalid bytes raise ValueError, or become U+FFFD if `errors` is
    `replace`. UTF-8 is not validated here.
    """
    encoding = check_encoding(encoding)
    is_stored = is_url(name) or os.path.isfile(name)  # not standard input or a pipe
    if is_stored and not name.endswith(COMPRESSED) and encoding == UTF_8:
        yield from _ranges(name, size)
        return
    start = 0
    for data, consumed in _read_lines(name, size, encoding, errors):
        yield Chunk(shown(name), start, len(data), data, consumed)
        start += len(data)


def line_groups(
    name: str, *, encoding: str = UTF_8, errors: str = "strict"
) -> Iterator[tuple[list[bytes], int]]:
    """Yield groups of lines as they arrive, without line ends, and the stored bytes of each group.

    Unlike `chunks`, this does not wait for more: a program that writes to a pipe line by line may
    be waiting for a response. Lines end with a line feed, a carriage return, or both.
    """
    is_first = True
    for data, consumed in _read_lines(name, 1, check_encoding(encoding), errors):
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if is_first:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        if not lines[-1]:
            lines.pop()
        yield lines, consumed
        is_first = False


def _ranges(name: str, size: int) -> Iterator[Chunk]:
    with _stored(name, 1 << 16) as file:  # only the lines at chunk ends are read here
        total = file.seek(0, os.SEEK_END)
        if total == 0:
            raise _empty(name)
        start = 0
        while start < total:
            file.seek(min(start + size, total))
            file.readline()
            end = file.tell()
            yield Chunk(name, start, end - start, None, end - start)
            start = end


def _read_lines(name: str, size: int, encoding: str, errors: str) -> Iterator[tuple[bytes, int]]:
    """Yield complete lines, about `size` bytes at a time, and their number of stored bytes."""
    buffer, searched, consumed_before, consumed = bytearray(), 0, 0, 0
    for data, consumed in _blocks(name, encoding, errors):
        buffer += data
        if len(buffer) < size:
            continue
        # Cut after the last line end. A final carriage return may be the first half of \r\n.
        last = len(buffer) - 1
        cut = max(buffer.rfind(b"\n", searched), buffer.rfind(b"\r", searched, last)) + 1
        searched = 0 if cut else last
        if cut:
            yield bytes(buffer[:cut]), consumed - consumed_before
            del buffer[:cut]
            consumed_before = consumed
    if buffer:
        yield bytes(buffer), consumed - consumed_before
    elif consumed_before == 0:
        raise _empty(name)


def _empty(name: str) -> ValueError:
    return ValueError(f"{shown(name)}: empty")


def _blocks(name: str, encoding: str, errors: str) -> Iterator[tuple[bytes, int]]:
    """Yield the uncompressed text in UTF-8 as it arrives, and the stored bytes read so far."""
    with _stored(name) as raw:
        blocks, position = _uncompressed(name, raw), 0
        if encoding != UTF_8:
            blocks = _recoded(name, blocks, encoding, errors)
        try:
            for block in blocks:
                position = raw.tell() if raw.seekable() else position + len(block)
                yield block, position
        except _DAMAGED as error:
            if isinstance(error, OSError) and error.errno is not None:  # a disk error
                raise
            raise ValueError(f"{shown(name)}: damaged or truncated: {error}") from None


@contextmanager
def _stored(name: str, block: int = CHUNK_BYTES) -> Iterator[IO[bytes]]:
    """Open the stored bytes of a source. URLs are fetched `block` bytes at a time."""
    if name == STDIN:
        yield sys.stdin.buffer
    elif is_url(name):
        with (
            _remote(name) as (files, path),
            files.open(path, "rb", block_size=block) as file,
            # fsspec files lack some methods of Python files.
            io.BufferedReader(file, block) as buffered,
        ):
            yield buffered
    else:
        with open(name, "rb") as file:
            yield file


def _recoded(name: str, blocks: Iterator[bytes], encoding: str, errors: str) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(blocks, encoding, errors):
            yield text.encode()  # can also fail: some codecs accept lone surrogates
    except UnicodeError:
        raise ValueError(
            f"{shown(name)}: not {encoding}; use another encoding or fix the text"
        ) from None


def _uncompressed(name: str, raw: IO[bytes]) -> Iterator[bytes]:
    if name.endswith(".zst"):
        return _zstd(name, raw)
    file: Any = raw
    if name.endswith(".gz"):
        file = gzip.GzipFile(fileobj=raw)
    elif name.endswith(".bz2"):
        file = bz2.BZ2File(raw)
    elif name.endswith(".xz"):
        file = lzma.LZMAFile(raw)
    return iter(lambda: file.read1(_READ_BYTES), b"")


def _zstd(name: str, raw: IO[bytes]) -> Iterator[bytes]:
    """Decompress frame by frame, because the reader of zstandard accepts truncated files."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(f"{name}: needs zstandard; pip install zstandard") from None
    frame: Any = None
    while stored := raw.read(_STORED_BYTES):
        while stored:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(stored)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            stored = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("the last frame is incomplete")


def shown(name: str) -> str:
    """Return the name of a source for messages."""
    return "standard input" if name == STDIN else name
