"""The token file: ids of one split in the smallest integer type, memory-mapped, with sentences.

Layout, little endian: a 128-byte header (magic, version, bytes per id, numbers of tokens and
sentences, vocabulary size and hash), the ids, zeros up to a multiple of 8 bytes, then one uint64
offset per sentence start and the end of the last. Opening reads the header alone. Knows ids, not
words.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from types import TracebackType
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
_COMPARED = 1 << 20

Ids = NDArray[np.unsignedinteger[Any]]


class Tokens(Protocol):
    """Source of batches: a stream of ids and where its sentences start."""

    @property
    def ids(self) -> NDArray[Any]: ...

    @property
    def offsets(self) -> NDArray[Any]: ...

    def require_whole(self) -> None:
        """ValueError if the tokens can no longer be read."""


@dataclass(frozen=True)
class TokenArray:
    """Tokens in memory, for text that is not worth a file."""

    ids: NDArray[Any]
    offsets: NDArray[Any]
    """Start of every sentence, then the number of tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    def require_whole(self) -> None:
        """Always: they are in memory."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int] | NDArray[Any]]) -> TokenArray:
        """Join sentences, each with its final `</s>`."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        return cls(joined, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


class TokenFile:
    """One split, memory-mapped: `ids` and `offsets` are read-only views, no copy is made."""

    num_sentences: int
    vocabulary_size: int

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a token file; ValueError if it is another file, of another version, or cut short."""
        self.path: str = os.fspath(path)
        require_file(path)
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
            self._size = os.fstat(file.fileno()).st_size
            if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
                raise ValueError(
                    f"{self.path}: not a zipflm token file, or cut short in its header"
                )
            # It keeps the file open, which tells of a change of its size (`require_whole`).
            self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        _, version, width, tokens, self.num_sentences, self.vocabulary_size, digest = (
            _HEADER.unpack_from(header)
        )
        if version != _VERSION or width not in _TYPES:
            raise ValueError(
                f"{self.path}: token file of version {version} with {width} bytes an id; this "
                f"release reads version {_VERSION}; prepare the data again"
            )
        self.vocabulary_hash: str = digest.decode("ascii", "replace").rstrip("\0")
        self._offsets_at = _aligned(_HEADER_SIZE + tokens * width)
        expected = self._offsets_at + 8 * (self.num_sentences + 1)
        if self._size != expected:
            raise ValueError(
                f"{self.path}: {self._size} bytes where its header promises {expected}: cut short "
                "or damaged; prepare the data again"
            )
        self.ids: Ids = np.ndarray((tokens,), _TYPES[width], self._map, _HEADER_SIZE)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def offsets(self) -> NDArray[np.uint64]:
        """Start of every sentence, then the number of tokens; ValueError if they are not that."""
        self.require_whole()
        shape = (self.num_sentences + 1,)
        offsets: NDArray[np.uint64] = np.ndarray(shape, np.uint64, self._map, self._offsets_at)
        # A wrong one could ask for a batch of any size. Every sentence has its `</s>` at least.
        if offsets[0] != 0 or offsets[-1] != len(self) or not _rises(offsets):
            raise ValueError(
                f"{self.path}: damaged: its sentences do not follow one another from 0 to "
                f"{len(self)}; prepare the data again"
            )
        return offsets

    def require_whole(self) -> None:
        """ValueError if the file has been cut or added to since it was opened.

        The system ends a process that reads a mapped file past its end.
        """
        size = self._map.size()
        if size != self._size:
            raise ValueError(
                f"{self.path}: changed while it was in use: {size} bytes, no longer {self._size}; "
                "prepare the data again"
            )


class TokenWriter:
    """Writes a token file piece by piece in bounded memory; complete only after a clean exit."""

    def __init__(self, path: str | PathLike[str], vocabulary_size: int, digest: str) -> None:
        self._size, self._digest = vocabulary_size, digest
        self.dtype: np.dtype[Any] = np.min_scalar_type(vocabulary_size - 1)
        self.num_tokens: int = 0
        self.num_sentences: int = 0
        self._file = open(path, "w+b")
        # Offsets wait in a file of their own: a billion words have thirty million of them.
        self._waiting_path = f"{os.fspath(path)}.offsets"
        self._waiting = open(self._waiting_path, "w+b")
        self._file.write(b"\0" * _HEADER_SIZE)

    def write(self, ids: NDArray[Any], ends: NDArray[Any]) -> None:
        """Append ids; `ends` are the positions just after each sentence that ends in them."""
        self._file.write(ids.astype(self.dtype).tobytes())
        self._waiting.write((ends.astype(np.uint64) + np.uint64(self.num_tokens)).tobytes())
        self.num_tokens += len(ids)
        self.num_sentences += len(ends)

    def _finish(self) -> None:
        end = _HEADER_SIZE + self.num_tokens * self.dtype.itemsize
        self._file.write(b"\0" * (_aligned(end) - end) + b"\0" * 8)
        self._waiting.seek(0)
        while piece := self._waiting.read(_COPY_BYTES):
            self._file.write(piece)
        self._file.seek(0)
        counts = self.num_tokens, self.num_sentences, self._size
        header = _MAGIC, _VERSION, self.dtype.itemsize, *counts, self._digest.encode()
        self._file.write(_HEADER.pack(*header))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        # After an error, closing may fail again for the same reason (a full disk).
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._waiting.close()
        os.unlink(self._waiting_path)


def _rises(offsets: NDArray[np.uint64]) -> bool:
    """Each is greater than the one before; compared piece by piece, as there may be millions."""
    starts = range(0, len(offsets) - 1, _COMPARED)
    pieces = (offsets[start : start + _COMPARED + 1] for start in starts)
    return all(bool(np.all(piece[:-1] < piece[1:])) for piece in pieces)


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
