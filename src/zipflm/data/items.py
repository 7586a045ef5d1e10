"""Read sequences of integer ids (items of a catalog, tokens of code) instead of text.

The result is a scan in which ids are words and sequences are lines. A file is one of:

- text with one sequence per line, ids separated by white space, optionally compressed;
- `.npy` with one dimension: one long sequence;
- `.npy` with two dimensions: one sequence per row; negative numbers are padding;
- `.npz` with `ids` and `offsets`: sequence i is `ids[offsets[i]:offsets[i + 1]]`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from zipflm.data.scan import LINE_END, Progress, Rename, Scan, ScannedChunk
from zipflm.data.text import chunks, is_stored, shown
from zipflm.data.vocabulary import SPECIALS
from zipflm.messages import quoted

Sequences = tuple[NDArray[Any], NDArray[np.int64]]
"""Ids, and the position after each sequence."""

ARRAYS = (".npy", ".npz")
_CHUNK_IDS = 1 << 22

# A lookup table over all ids is faster than sorting, unless it is much larger than the data.
_MAX_TABLE_SIZE = 1 << 26

# Raised by NumPy, zipfile and zlib for damaged files and files of other formats.
_UNREADABLE: tuple[type[Exception], ...] = (ValueError, TypeError, EOFError, OverflowError)
_UNREADABLE += (MemoryError, RuntimeError, NotImplementedError, BadZipFile, TokenError, zlib.error)

_VALID_IDS = "ids must be non-negative integers"


def are_arrays(sources: Sequence[str]) -> bool:
    """Return whether the files are arrays rather than text. Raises ValueError for a mix of both."""
    arrays = [source.endswith(ARRAYS) for source in sources]
    if any(arrays) and not all(arrays):
        raise ValueError(
            f"{sources[arrays.index(False)]} and {sources[arrays.index(True)]}: text and "
            "arrays in one split; use only one of them"
        )
    return all(arrays)


def item_names(sources: Sequence[str], names: Sequence[str] | None) -> Rename:
    """Return a function that replaces ids with `names[id]`, or keeps them if `names` is None.

    The function raises ValueError, naming file and line, for a word that is not an id.
    """
    is_text = not are_arrays(sources)

    def rename(words: list[str]) -> list[str]:
        if is_text:
            _require_numbers(words, sources)
        return words if names is None else _renamed(words, names)

    return rename


def load_names(path: str) -> list[str]:
    """Read item names, one per line starting with id 0. White space in them becomes `_`.

    Raises ValueError, naming the line, for an empty, repeated or reserved name.
    """
    try:
        text = b"".join(chunk.read() for chunk in chunks(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
    names = ["_".join(line.split()) for line in text.removesuffix("\n").split("\n")]
    line_of: dict[str, int] = {}
    for line_number, name in enumerate(names, start=1):
        if not name or LINE_END in name:
            raise ValueError(f"{path}: line {line_number}: has no name for id {line_number - 1}")
        if name in SPECIALS:
            raise ValueError(f"{path}: line {line_number}: {name} is reserved; rename it")
        if line_of.setdefault(name, line_number) != line_number:
            raise ValueError(
                f"{path}: line {line_number}: {quoted(name)} is already used in line "
                f"{line_of[name]}"
            )
    return names


def _renamed(words: Sequence[str], names: Sequence[str]) -> list[str]:
    ids = list(map(int, words))
    if ids and max(ids) >= len(names):
        raise ValueError(
            f"the file of names has {len(names):,} lines, but id {max(ids):,} needs line "
            f"{max(ids) + 1:,}; name every id"
        )
    return [names[id] for id in ids]


def _require_numbers(words: Iterable[str], sources: Sequence[str]) -> None:
    for word in words:
        is_number = word.isascii() and word.isdigit() and len(word) <= 18
        if not (is_number and str(int(word)) == word):
            raise ValueError(
                f"{_locate(word, sources)}: {quoted(word)} is not an id; {_VALID_IDS} without a "
                "sign or leading zeros"
            )


def _locate(word: str, sources: Sequence[str]) -> str:
    """Return file and line of a word, for a message."""
    for source in sources:
        if not is_stored(source):
            return shown(source)
        line_number = 0
        for chunk in chunks(source):
            for line in chunk.read().split(b"\n"):
                line_number += 1
                if word.encode() in line.split():
                    return f"{source}: line {line_number}"
            line_number -= 1  # split() returns an empty part after the last line end
    return ", ".join(sources)


def scan_arrays(sources: Iterable[str], into: Scan, progress: Progress) -> None:
    """Scan arrays of ids in order. Raises ValueError, naming the file, for invalid ids."""
    for source in sources:
        for ids, ends in _segments(source, _load(source)):
            into.add(_scan_segment(ids, ends))
            progress(ids.nbytes)


def _load(source: str) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
    """Return a two-dimensional array, or ids and offsets. Pickles are not loaded."""
    if source.endswith(".npy"):
        with _numpy_errors(source):
            array = np.lib.format.open_memmap(source, mode="r")
        _require_integers(source, array)
        return array if array.ndim == 2 else (array, np.array([0, len(array)]))
    needed = ("ids", "offsets")
    with (
        _numpy_errors(source),
        open(source, "rb") as file,
        np.load(file, allow_pickle=False) as stored,
    ):
        arrays = {name: stored[name] for name in needed if name in stored}
    missing = set(needed) - set(arrays)
    if missing:
        raise ValueError(f"{source}: no array {min(missing)!r}; save ids and offsets")
    ids, offsets = (arrays[name] for name in needed)
    _require_integers(source, ids, offsets)
    if ids.ndim != 1 or offsets.ndim != 1:
        raise ValueError(f"{source}: ids and offsets must have one dimension each")
    is_increasing = bool(np.all(offsets[:-1] <= offsets[1:]))
    if not is_increasing or offsets[0] != 0 or offsets[-1] != len(ids):
        raise ValueError(
            f"{source}: offsets must increase from 0 to {len(ids)}, the number of ids; sequence i "
            "is ids[offsets[i]:offsets[i + 1]]"
        )
    return ids, offsets


@contextmanager
def _numpy_errors(source: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise ValueError(
            f"{source}: not a NumPy array of integers ({error}); write it with "
            "np.save(file, ids) or np.savez(file, ids=ids, offsets=offsets)"
        ) from None


def _require_integers(source: str, *arrays: NDArray[Any]) -> None:
    for array in arrays:
        if array.dtype.kind not in "iu":
            raise ValueError(
                f"{source}: has type {array.dtype}; {_VALID_IDS}: save array.astype(numpy.int64)"
            )
        if array.ndim not in (1, 2):
            raise ValueError(f"{source}: has {array.ndim} dimensions; save one or two")
        if not array.size:
            raise ValueError(f"{source}: empty")


def _segments(
    source: str, loaded: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]
) -> Iterator[Sequences]:
    """Yield whole sequences, a few million ids at a time."""
    if isinstance(loaded, tuple):
        ids, offsets = loaded
        starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        first = 0
        while first < len(ends):
            start = starts[first]
            last = max(int(np.searchsorted(ends, start + _CHUNK_IDS, "right")), first + 1)
            segment = ids[start : ends[last - 1]]
            _require_non_negative(source, segment, int(start))
            yield segment, ends[first:last] - start
            first = last
    else:
        rows = max(1, _CHUNK_IDS // loaded.shape[1])
        for first in range(0, len(loaded), rows):
            block = loaded[first : first + rows]
            is_id = block >= 0
            yield block[is_id], np.cumsum(is_id.sum(axis=1))


def _require_non_negative(source: str, ids: NDArray[Any], start: int) -> None:
    if ids.size and ids.min() < 0:
        index = int(np.argmax(ids < 0))
        raise ValueError(
            f"{source}: {ids[index]} at position {start + index}; {_VALID_IDS} (negative numbers "
            "are padding in two-dimensional arrays only)"
        )


def _scan_segment(ids: NDArray[Any], ends: NDArray[np.int64]) -> ScannedChunk:
    distinct, numbers = _distinct(ids)
    line_ends = ends + np.arange(len(ends))
    is_id = np.ones(len(ids) + len(ends), dtype=np.bool_)
    is_id[line_ends] = False
    indices = np.zeros(len(is_id), dtype=np.min_scalar_type(len(distinct)))
    indices[is_id] = numbers + 1
    words = " ".join([LINE_END, *map(str, distinct.tolist())])
    counts = np.bincount(indices, minlength=len(distinct) + 1)
    return ScannedChunk(words, counts, indices)


def _distinct(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct ids, ascending, and the index of each id among them."""
    if not ids.size:
        return ids, np.zeros(0, dtype=np.int64)
    if ids.max() >= min(max(8 * len(ids), 1 << 20), _MAX_TABLE_SIZE):
        distinct, inverse = np.unique(ids, return_inverse=True)
        return distinct, inverse.reshape(-1)
    occurs = np.zeros(int(ids.max()) + 1, dtype=np.bool_)
    occurs[ids] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[ids]
