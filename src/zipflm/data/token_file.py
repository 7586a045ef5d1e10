"""Token files: the memory-mapped ids of one split and the offsets of its sentences.

Layout, little endian: a 128-byte header (magic, version, bytes per id, numbers of tokens and
sentences, vocabulary size and hash), the ids in the smallest unsigned type that fits the
vocabulary, padding to a multiple of 8 bytes, then one uint64 offset per sentence start and one for
the end of the last sentence.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zipflm.messages import require_file

_MAGIC = b"zipflmT\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ64s")
_HEADER_SIZE = 128
_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_COPY_BYTES = 1 << 22

Ids = NDArray[np.unsignedinteger[Any]]


class Tokens(Protocol):
    """Source of batches: a stream of ids and the offsets of its sentences."""

    @property
    def ids(self) -> NDArray[Any]: ...

    @property
    def offsets(self) -> NDArray[Any]: ...

    def require_readable(self) -> None:
        """Raise ValueError if the tokens can no longer be read."""


@dataclass(frozen=True)
class TokenArray:
    """Tokens in memory."""

    ids: NDArray[Any]
    offsets: NDArray[Any]
    """Start of every sentence, then the number of tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def require_readable(self) -> None:
        """Do nothing: tokens in memory can always be read."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int] | NDArray[Any]]) -> TokenArray:
        """Concatenate sentences. `</s>` is not added."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        return cls(joined, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


class TokenFile:
    """A memory-mapped split. `ids` and `offsets` are read-only views."""

    num_sentences: int
    vocabulary_size: int

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a token file.

        Raises ValueError if it is truncated, has another version or is not a token file.
        """
        self.path: str = os.fspath(path)
        require_file(path)
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
            self._size = os.fstat(file.fileno()).st_size
            if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
                raise ValueError(f"{self.path}: not a zipflm token file, or truncated")
            # The map keeps the file open, so `require_readable` can detect a change in its size.
            self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        _, version, width, tokens, self.num_sentences, self.vocabulary_size, digest = (
            _HEADER.unpack_from(header)
        )
        if version != _VERSION or width not in _TYPES:
            raise ValueError(
                f"{self.path}: token file version {version} with {width} bytes per id, but this "
                f"release reads version {_VERSION}; prepare the data again"
            )
        self.vocabulary_hash: str = digest.decode("ascii", "replace").rstrip("\0")
        offsets_at = _aligned(_HEADER_SIZE + tokens * width)
        expected = offsets_at + 8 * (self.num_sentences + 1)
        if self._size != expected:
            raise ValueError(
                f"{self.path}: truncated or damaged, {self._size} bytes instead of {expected}; "
                "prepare the data again"
            )
        self.ids: Ids = np.ndarray((tokens,), _TYPES[width], self._map, _HEADER_SIZE)
        self.offsets: NDArray[np.uint64] = np.ndarray(
            (self.num_sentences + 1,), np.uint64, self._map, offsets_at
        )
        """Start of every sentence, then the number of tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def require_readable(self) -> None:
        """Raise ValueError if the file size has changed since it was opened.

        Reading a mapped file past its end would kill the process.
        """
        size = self._map.size()
        if size != self._size:
            raise ValueError(
                f"{self.path}: changed while in use, from {self._size} to {size} bytes; prepare "
                "the data again"
            )


class TokenWriter:
    """Writes a token file incrementally. The file is valid only after a clean exit."""

    def __init__(self, path: str | PathLike[str], vocabulary_size: int, digest: str) -> None:
        self._size, self._digest = vocabulary_size, digest
        self.dtype: np.dtype[Any] = np.min_scalar_type(vocabulary_size - 1)
        self.num_tokens: int = 0
        self.num_sentences: int = 0
        self._file = open(path, "w+b")
        # Offsets go to a temporary file: a corpus of a billion words has thirty million sentences.
        self._offsets_path = f"{os.fspath(path)}.offsets"
        self._offsets = open(self._offsets_path, "w+b")
        self._file.write(b"\0" * _HEADER_SIZE)

    def write(self, ids: NDArray[Any], ends: NDArray[Any]) -> None:
        """Append ids. `ends` are the positions in `ids` after each sentence."""
        self._file.write(ids.astype(self.dtype).tobytes())
        self._offsets.write((ends.astype(np.uint64) + np.uint64(self.num_tokens)).tobytes())
        self.num_tokens += len(ids)
        self.num_sentences += len(ends)

    def _finish(self) -> None:
        end = _HEADER_SIZE + self.num_tokens * self.dtype.itemsize
        self._file.write(b"\0" * (_aligned(end) - end) + b"\0" * 8)
        self._offsets.seek(0)
        shutil.copyfileobj(self._offsets, self._file, _COPY_BYTES)
        self._file.seek(0)
        counts = self.num_tokens, self.num_sentences, self._size
        header = _MAGIC, _VERSION, self.dtype.itemsize, *counts, self._digest.encode()
        self._file.write(_HEADER.pack(*header))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._finish()
        for file in (self._file, self._offsets):
            with suppress(OSError):  # closing may fail again on a full disk
                file.close()
        os.unlink(self._offsets_path)


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
