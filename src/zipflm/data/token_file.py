"""Token files: the memory-mapped ids of one split and the offsets of its sentences.

Layout, little endian: a 128-byte header (magic, version, bytes per id, numbers of tokens and
sentences, vocabulary size and hash), the ids in the smallest unsigned type that fits the
vocabulary, padding to a multiple of 8 bytes, then one uint64 offset per sentence start and one for
the end of the last sentence.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.messages import require_file

_MAGIC = b"zipflmT\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQ64s")
_HEADER_SIZE = 128


@dataclass(frozen=True)
class TokenArray:
    """A stream of ids and the offsets of its sentences."""

    ids: NDArray[Any]
    offsets: NDArray[Any]
    """Start of every sentence, then the number of tokens."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def longest_sentence(self) -> int:
        """Length of the longest sentence in tokens."""
        return int(np.diff(self.offsets).max(initial=0))

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int] | NDArray[Any]]) -> TokenArray:
        """Concatenate sentences. `</s>` is not added."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        return cls(joined, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def open_tokens(path: str | PathLike[str], vocabulary_hash: str) -> TokenArray:
    """Map a token file into memory, as read-only arrays.

    Raises ValueError if it is truncated, belongs to another vocabulary, has another version or is
    not a token file.
    """
    require_file(path)
    with open(path, "rb") as file:
        header = file.read(_HEADER_SIZE)
    if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
        raise ValueError(f"{path}: not a zipflm token file, or truncated; prepare the data again")
    _, version, width, num_tokens, num_sentences, _, digest = _HEADER.unpack_from(header)
    if version != _VERSION or width not in (1, 2, 4):
        raise ValueError(
            f"{path}: token file version {version} with {width} bytes per id, but this "
            f"release reads version {_VERSION}; prepare the data again"
        )
    if digest != vocabulary_hash.encode():
        raise ValueError(
            f"{path}: made with vocabulary {digest.decode('ascii', 'replace')}, but the folder has "
            f"{vocabulary_hash}; prepare the data again"
        )
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    ids_end = _HEADER_SIZE + num_tokens * width
    offsets_start = _aligned(ids_end)
    expected = offsets_start + 8 * (num_sentences + 1)
    if len(data) != expected:
        raise ValueError(
            f"{path}: truncated or damaged, {len(data)} bytes instead of {expected}; prepare the "
            "data again"
        )
    ids = data[_HEADER_SIZE:ids_end].view(f"u{width}")
    return TokenArray(ids, data[offsets_start:].view(np.uint64))


@contextmanager
def token_writer(
    path: Path, vocabulary_size: int, vocabulary_hash: str
) -> Iterator[Callable[[NDArray[Any], NDArray[Any]], None]]:
    """Yield a function that appends ids to a new token file.

    Its second argument contains the positions after each sentence in these ids. The file is valid
    only after a clean exit.
    """
    dtype = np.min_scalar_type(vocabulary_size - 1)
    offsets, num_tokens = [np.zeros(1, np.uint64)], 0
    with open(path, "wb") as file:
        file.write(bytes(_HEADER_SIZE))

        def write(ids: NDArray[Any], ends: NDArray[Any]) -> None:
            nonlocal num_tokens
            file.write(ids.astype(dtype).data)
            offsets.append(ends.astype(np.uint64) + np.uint64(num_tokens))
            num_tokens += len(ids)

        yield write
        file.write(bytes(_aligned(file.tell()) - file.tell()))
        for part in offsets:
            file.write(part.data)
        counts = num_tokens, sum(map(len, offsets)) - 1, vocabulary_size
        header = _MAGIC, _VERSION, dtype.itemsize, *counts, vocabulary_hash.encode()
        file.seek(0)
        file.write(_HEADER.pack(*header))


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
