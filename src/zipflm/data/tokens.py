"""The token file: ids of one split in the smallest integer type, memory-mapped, with sentences.

Layout, little endian: a 128-byte header (magic, version, bytes per id, numbers of tokens and
sentences, vocabulary size and hash), the ids, zeros up to a multiple of 8 bytes, then one uint64
offset per sentence start and the end of the last. Opening reads the header alone. Knows ids, not
words.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zipflm.reading import require_file

_MAGIC = b"zipflmT\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ64s")
_HEADER_SIZE = 128
_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_COPY_BYTES = 1 << 22

Ids = NDArray[np.unsignedinteger[Any]]


class Tokens(Protocol):
    """What batches are cut from: a stream of ids and where its sentences start."""

    @property
    def ids(self) -> NDArray[Any]: ...

    @property
    def offsets(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class TokenArray:
    """Tokens in memory, for text that is not worth a file."""

    ids: NDArray[Any]
    offsets: NDArray[Any]
    """Start of every sentence, then the number of tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int] | NDArray[Any]]) -> TokenArray:
        """Join sentences, each with its final `</s>`."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        return cls(joined, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


class TokenFile:
    """One split, memory-mapped: `ids` and `offsets` are read-only views, no copy is made."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open a token file; ValueError if it is none, of another version, or cut short."""
        self.path = os.fspath(path)
        require_file(path)
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
            size = os.fstat(file.fileno()).st_size
        if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
            raise ValueError(f"{self.path}: not a zipflm token file, or cut short in its header")
        _, version, width, tokens, sentences, self.vocabulary_size, digest = _HEADER.unpack_from(
            header
        )
        if version != _VERSION or width not in _TYPES:
            raise ValueError(
                f"{self.path}: token file of version {version} with {width} bytes an id; this "
                f"release reads version {_VERSION}; prepare the data again"
            )
        self.vocabulary_hash = digest.decode("ascii", "replace").rstrip("\0")
        offsets_at = _aligned(_HEADER_SIZE + tokens * width)
        expected = offsets_at + 8 * (sentences + 1)
        if size != expected:
            raise ValueError(
                f"{self.path}: {size} bytes where its header promises {expected}: cut short or "
                "damaged; prepare the data again"
            )
        self.ids: Ids = np.memmap(path, _TYPES[width], "r", _HEADER_SIZE, (tokens,))
        self.offsets: NDArray[np.uint64] = np.memmap(
            path, np.uint64, "r", offsets_at, (sentences + 1,)
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_sentences(self) -> int:
        return len(self.offsets) - 1

    def require_vocabulary(self, digest: str) -> None:
        """ValueError, naming both hashes, unless the file was made with that vocabulary."""
        if self.vocabulary_hash != digest:
            raise ValueError(
                f"{self.path}: made with vocabulary {self.vocabulary_hash}, but this one is "
                f"{digest}; prepare the text again with this vocabulary"
            )


def smallest_type(vocabulary_size: int) -> type[np.unsignedinteger[Any]]:
    """The narrowest unsigned integer type that holds every id."""
    for width, dtype in _TYPES.items():
        if vocabulary_size <= 1 << (8 * width):
            return dtype
    raise ValueError(f"vocabulary of {vocabulary_size} words: ids go up to 32 bits")


class TokenWriter:
    """Writes a token file piece by piece in bounded memory; complete only after a clean exit."""

    def __init__(self, path: str | PathLike[str], vocabulary_size: int, digest: str) -> None:
        self._size, self._digest = vocabulary_size, digest
        self.dtype = smallest_type(vocabulary_size)
        self.num_tokens = self.num_sentences = 0
        self._file = open(path, "w+b")
        # Offsets wait in a file of their own: a billion words have thirty million of them.
        self._waiting_path = f"{os.fspath(path)}.offsets"
        self._waiting = open(self._waiting_path, "w+b")
        self._file.write(b"\0" * _HEADER_SIZE)

    def write(self, ids: NDArray[Any], ends: NDArray[Any]) -> None:
        """Append ids; `ends` are the positions just behind each sentence that ends in them."""
        self._file.write(ids.astype(self.dtype).tobytes())
        self._waiting.write((ends.astype(np.uint64) + np.uint64(self.num_tokens)).tobytes())
        self.num_tokens += len(ids)
        self.num_sentences += len(ends)

    def _finish(self) -> None:
        end = _HEADER_SIZE + self.num_tokens * np.dtype(self.dtype).itemsize
        self._file.write(b"\0" * (_aligned(end) - end) + b"\0" * 8)
        self._waiting.seek(0)
        while piece := self._waiting.read(_COPY_BYTES):
            self._file.write(piece)
        self._file.seek(0)
        self._file.write(
            _HEADER.pack(
                _MAGIC,
                _VERSION,
                np.dtype(self.dtype).itemsize,
                self.num_tokens,
                self.num_sentences,
                self._size,
                self._digest.encode(),
            )
        )
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


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
