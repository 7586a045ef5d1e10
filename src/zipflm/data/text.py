"""Reading text: files, URLs, globs, standard input, compressed or not, as chunks of whole lines.

A chunk is bytes or, for a plain file, the range of bytes that a worker reads for itself. Refuses
empty files and endless lines; leaves decoding to the caller. Text in another encoding than UTF-8 is
UTF-8 from here on.

URLs (`s3://`, `gs://`, `hdfs://`, `file://` ...) are read by fsspec, which is imported when a text
needs it. Local files are not: its local files cannot be pipes, its reader of .zst takes a file that
was cut for a whole one, and that of .zip reads the first member alone.
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
from itertools import chain
from os import PathLike
from typing import IO, Any

from zipflm.messages import unquoted

CHUNK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 24
"""No sentence is that long: such a file is not text, or has no line ends.

Counted from the end of a chunk, so that a line that begins inside one may have `CHUNK_BYTES` more.
"""

STDIN = "-"
UTF_8 = "utf-8"
_STORED_BYTES = 1 << 12
"""Bytes of a .zst file decompressed at once. A block of four bytes may stand for 128 KiB, so this
bounds the memory that a hostile file can ask for."""
_READ_BYTES = 1 << 20
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_URL = re.compile(r"[a-z][a-z0-9+]+://.")  # one letter is a drive
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""Raised by the readers of damaged files."""


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one source, from byte `start` of its uncompressed text."""

    source: str
    start: int
    size: int
    data: bytes | None
    """None for a plain file or object: read `size` bytes at `start`."""
    consumed: int
    """Bytes of the source as stored that this chunk took, for a progress bar."""

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
            raise ValueError(f"{self.source}: became shorter while it was read")
        return data


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


@contextmanager
def _remote(name: str) -> Iterator[tuple[Any, str]]:
    """The fsspec file system of a URL and the path in it; errors of its library name the URL."""
    import fsspec

    try:
        found = fsspec.core.url_to_fs(name)
    except ImportError as error:
        raise ValueError(f"{name}: {error}; install what reads such URLs") from None
    except ValueError as error:
        raise ValueError(
            f"{name}: {error}; texts are files, or URLs such as s3://, gs://, hdfs:// and file://"
        ) from None
    try:
        yield found
    except (ValueError, OSError):
        raise
    except Exception as error:  # of one of many libraries, each with its own
        raise OSError(f"{name}: cannot be read: {type(error).__name__}: {error}") from error


def expand(patterns: Iterable[str | PathLike[str]]) -> list[str]:
    """File names for names, URLs and globs, those of a glob sorted; `-` is standard input.

    Raises FileNotFoundError for a name or glob that stands for no file.
    """
    names: list[str] = []
    for pattern in (os.fspath(pattern) for pattern in patterns):
        found = _expand_url(pattern) if is_url(pattern) else _expand_path(pattern)
        if not found:
            raise FileNotFoundError(f"{pattern}: no such file")
        names += found
    if names.count(STDIN) > 1:
        raise ValueError("standard input can be read once only")
    return names


def _expand_url(pattern: str) -> list[str]:
    with _remote(pattern) as (files, path):
        if any(mark in path for mark in "*?["):
            found = files.glob(path, detail=True)
        else:
            found = {path: files.info(path)} if files.exists(path) else {}
        names = sorted(files.unstrip_protocol(name) for name in found)
    for name, info in found.items():
        if info["type"] == "directory":
            raise _folder(name)
    return names


def _expand_path(pattern: str) -> list[str]:
    if pattern == STDIN or os.path.exists(pattern):
        names = [pattern]
    else:
        names = sorted(glob.glob(pattern, recursive=True))
    for name in names:
        if os.path.isdir(name):
            raise _folder(name)
    return names


def _folder(name: str) -> IsADirectoryError:
    return IsADirectoryError(f"{name}: a folder; name its files, e.g. '{name}/*.txt'")


def identity(name: str) -> str:
    """The same for two names of one text."""
    if is_url(name):
        with _remote(name) as (files, path):
            if "file" not in files.protocol:
                return str(files.unstrip_protocol(path))
            name = path
    return name if name == STDIN else os.path.realpath(name)


def stored_size(names: Iterable[str]) -> int | None:
    """Bytes as stored in all; None if standard input or a pipe is among them."""
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
    """The encoding's own name, `utf-8` for every spelling of that; ValueError if there is no such.

    >>> check_encoding("UTF8"), check_encoding("latin1")
    ('utf-8', 'iso8859-1')
    """
    try:
        "".encode(encoding)  # which refuses codecs that are not of text
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise ValueError(
            f"--encoding {unquoted(encoding)}: there is no such; try latin-1, cp1252 or utf-16"
        ) from None


def chunks(
    name: str, size: int = CHUNK_BYTES, *, encoding: str = UTF_8, errors: str = "strict"
) -> Iterator[Chunk]:
    """All of one source, in order, cut after line ends.

    Bytes that are not of the encoding are a ValueError, or U+FFFD if `errors` is `replace`; those
    that are not UTF-8 are left to the caller.
    """
    encoding = check_encoding(encoding)
    if is_stored(name) and not name.endswith(_SUFFIXES) and encoding == UTF_8:
        yield from _ranges(name, size)
        return
    start = 0
    for data, consumed in _whole_lines(name, size, encoding, errors):
        yield Chunk(shown(name), start, len(data), data, consumed)
        start += len(data)


def is_stored(name: str) -> bool:
    """Whether a source can be read again, unlike standard input or a pipe (`<(zcat ...)`)."""
    return name != STDIN and (is_url(name) or os.path.isfile(name))


def line_groups(
    name: str, *, encoding: str = UTF_8, errors: str = "strict"
) -> Iterator[tuple[list[bytes], int]]:
    """Lines without their ends, all that have arrived at a time, and the bytes they took as stored.

    Unlike `chunks`, which wait until they are full: a program that writes into a pipe line by line
    may be waiting for an answer. Lines end at line feeds, carriage returns, or both.
    """
    is_first = True
    for data, consumed in _whole_lines(name, 1, check_encoding(encoding), errors):
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if is_first:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        if not lines[-1]:
            lines.pop()
        yield lines, consumed
        is_first = False


def _ranges(name: str, size: int) -> Iterator[Chunk]:
    with _stored(name, 1 << 16) as file:  # only line ends are read here
        total = file.seek(0, os.SEEK_END)
        if total == 0:
            raise _empty(name)
        start = 0
        while start < total:
            file.seek(min(start + size, total))
            if len(file.readline(MAX_LINE_BYTES + 1)) > MAX_LINE_BYTES:
                raise _endless_line(name, start)
            end = file.tell()
            yield Chunk(name, start, end - start, None, end - start)
            start = end


def _whole_lines(name: str, size: int, encoding: str, errors: str) -> Iterator[tuple[bytes, int]]:
    """Lines with their ends, at least `size` bytes at a time, and the bytes they took as stored."""
    held, start, before, now = bytearray(), 0, 0, 0
    for data, now in _blocks(name, encoding, errors):
        held += data
        if len(held) < size:
            continue
        # After the last whole line end; a carriage return at the very end may be half of one.
        cut = max(held.rfind(b"\n"), held.rfind(b"\r", 0, len(held) - 1)) + 1
        if cut:
            yield bytes(held[:cut]), now - before
            del held[:cut]
            start, before = start + cut, now
        if len(held) > size + MAX_LINE_BYTES:
            raise _endless_line(name, start)
    if held:
        yield bytes(held), now - before
    elif start == 0:
        raise _empty(name)


def _empty(name: str) -> ValueError:
    return ValueError(f"{shown(name)}: empty")


def _endless_line(name: str, start: int) -> ValueError:
    return ValueError(
        f"{shown(name)}: a line at or after byte {start} is longer than {MAX_LINE_BYTES} "
        "bytes; put line ends into the text, one sentence or paragraph a line"
    )


def _blocks(name: str, encoding: str, errors: str) -> Iterator[tuple[bytes, int]]:
    """The uncompressed text in UTF-8 as it arrives, and the bytes read so far as stored."""
    with _stored(name) as raw:
        blocks, position = _uncompressed(name, raw), 0
        if encoding != UTF_8:
            blocks = _recoded(name, blocks, encoding, errors)
        try:
            for block in blocks:
                position = raw.tell() if raw.seekable() else position + len(block)
                yield block, position
        except _DAMAGED as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk
                raise
            raise ValueError(f"{shown(name)}: damaged or cut short: {error}") from None


@contextmanager
def _stored(name: str, block: int = CHUNK_BYTES) -> Iterator[IO[bytes]]:
    """The source as it is stored; `block` bytes of a URL are fetched at a time."""
    try:
        if name == STDIN:
            yield sys.stdin.buffer
        elif is_url(name):
            with (
                _remote(name) as (files, path),
                files.open(path, "rb", block_size=block) as file,
                # Files of fsspec lack some ways of reading that Python's have.
                io.BufferedReader(file, block) as buffered,
            ):
                yield buffered
        else:
            with open(name, "rb") as file:
                yield file
    except OSError as error:
        if error.errno is not None and error.filename is None:  # reading does not name the file
            error.filename = shown(name)
        raise


def _recoded(name: str, blocks: Iterator[bytes], encoding: str, errors: str) -> Iterator[bytes]:
    """Text in another encoding as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    before = 0
    for data in chain(blocks, [b""]):
        # The decoder holds back the beginning of a character, and counts from there.
        held = len(decoder.getstate()[0])
        try:
            # Encoding may fail as well: some codecs let halves of characters pass.
            text = decoder.decode(data, final=not data).encode()
        except UnicodeError as error:
            place = before - held + getattr(error, "start", 0)
            raise ValueError(
                f"{shown(name)}: not {encoding} near byte {place}; give another --encoding, or "
                "mend the text"
            ) from None
        before += len(data)
        yield text


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
    """Frames one after the other. The library's own reader takes a cut file for a whole one."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(f"{name}: needs the package zstandard: pip install zstandard") from None
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
        raise EOFError("it ends inside a frame")


def encoding_hint(data: bytes) -> str:
    """A suggestion for text that is not UTF-8, by how it begins."""
    # Windows writes UTF-16 with a mark in front; without one, every other byte of most text is 0.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins as UTF-16 does: give --encoding utf-16"
    if data[:200:2].count(0) > 80 or data[1:200:2].count(0) > 80:
        big = data[:200:2].count(0) > 80
        return f"it looks like UTF-16: give --encoding utf-16-{'be' if big else 'le'}"
    return "give its --encoding (latin-1, cp1252, utf-16 ...)"


def shown(name: str) -> str:
    """The name of a source in messages."""
    return "standard input" if name == STDIN else name
