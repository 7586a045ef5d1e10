"""Read sequences of integer ids (items of a catalog, tokens of code) instead of text.

The result is a scan in which ids are words and sequences are lines. A file is one of:

- text with one sequence per line, ids separated by whitespace, optionally compressed;
- `.npy` with one dimension: one long sequence;
- `.npy` with two dimensions: one sequence per row; negative numbers are padding;
- `.npz` with `ids` and `offsets`: sequence i is `ids[offsets[i]:offsets[i + 1]]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.data.scan import LINE_END, Progress, Rename, Scan, ScannedChunk
from zipflm.data.text import is_url, line_groups, shown
from zipflm.data.vocabulary import SPECIALS
from zipflm.messages import quoted

ARRAYS = (".npy", ".npz")
_CHUNK_IDS = 1 << 22

_VALID_IDS = "ids must be non-negative integers"


def are_arrays(sources: Sequence[str]) -> bool:
    """Return whether the files are arrays rather than text. Raises ValueError for a mix of both."""
    arrays = [source.endswith(ARRAYS) for source in sources]
    if any(arrays) and not all(arrays):
        raise ValueError(
            f"{sources[arrays.index(False)]} and {sources[arrays.index(True)]}: text and "
            "arrays in one split; use only text or only arrays"
        )
    return all(arrays)


def item_names(sources: Sequence[str], names: Sequence[str] | None) -> Rename:
    """Return a function that replaces ids with `names[id]`, or keeps them if `names` is None.

    The function raises ValueError for a word that is not an id, and for an id without a name.
    """
    is_text = not are_arrays(sources)

    def rename(words: list[str]) -> list[str]:
        if is_text:
            _require_numbers(words, sources)
        return words if names is None else _renamed(words, names)

    return rename


def load_names(path: str | PathLike[str]) -> list[str]:
    """Read item names, one per line starting with id 0. Whitespace inside a name becomes `_`.

    Raises ValueError, naming the line, for an empty, repeated or reserved name.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
    names = ["_".join(line.split()) for line in text.removesuffix("\n").split("\n")]
    line_of: dict[str, int] = {}
    for line_number, name in enumerate(names, start=1):
        if not name or LINE_END in name:
            problem = "contains NUL" if name else "is missing"
            raise ValueError(
                f"{path}: line {line_number}: the name of id {line_number - 1} {problem}"
            )
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
            f"--names: has {len(names):,} lines, but id {max(ids):,} needs line {max(ids) + 1:,}; "
            "name every id"
        )
    return [names[id] for id in ids]


def _require_numbers(words: Iterable[str], sources: Sequence[str]) -> None:
    for word in words:
        is_number = word.isascii() and word.isdigit() and len(word) <= 18
        if not (is_number and str(int(word)) == word):
            raise ValueError(
                f"{_locate(word, sources)}: {quoted(word)} is not an id; {_VALID_IDS} of at most "
                "18 digits, without a sign or leading zeros"
            )


def _locate(word: str, sources: Sequence[str]) -> str:
    """Return the file and line of a word, or all files if it cannot be found again."""
    for source in sources:
        # Standard input and pipes cannot be read again.
        groups = line_groups(source) if is_url(source) or os.path.isfile(source) else ()
        for number, line in enumerate(chain.from_iterable(group for group, _ in groups), start=1):
            if word.encode() in line.split():
                return f"{source}: line {number}"
    return ", ".join(map(shown, sources))


def scan_arrays(sources: Iterable[str], into: Scan, progress: Progress) -> None:
    """Scan arrays of ids in order. Raises ValueError, naming the file, for invalid ids."""
    for source in sources:
        for ids, ends in _segments(source, *_load(source)):
            into.add(_scan_segment(ids, ends))
            progress(ids.nbytes)


def _load(source: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return ids of one or two dimensions, and offsets if the file has them."""
    try:
        if source.endswith(".npy"):
            return np.lib.format.open_memmap(source, mode="r"), None
        with open(source, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["ids"], arrays["offsets"]
    except OSError:
        raise
    except Exception as error:  # NumPy raises many types for files of other formats
        raise ValueError(
            f"{source}: not a NumPy array of integers ({error}); write it with "
            "np.save(file, ids) or np.savez(file, ids=ids, offsets=offsets)"
        ) from None


def _segments(
    source: str, ids: NDArray[Any], offsets: NDArray[Any] | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Yield about 4 million ids at a time, with the end of each sequence. A sequence is not
    divided."""
    for array in (ids,) if offsets is None else (ids, offsets):
        if array.dtype.kind not in "iu":
            raise ValueError(
                f"{source}: an array has type {array.dtype}; ids and offsets must be integers: "
                "save array.astype(numpy.int64)"
            )
    if not ids.size:
        raise ValueError(f"{source}: empty")
    if ids.ndim == 2 and offsets is None:
        num_rows = max(1, _CHUNK_IDS // ids.shape[1])
        for first in range(0, len(ids), num_rows):
            block = ids[first : first + num_rows]
            is_id = block >= 0
            yield block[is_id], np.cumsum(is_id.sum(axis=1))
        return
    if ids.ndim != 1:
        raise ValueError(
            f"{source}: ids have {ids.ndim} dimensions; they must have one, or two if there are no "
            "offsets"
        )
    bounds = np.array([0, len(ids)]) if offsets is None else offsets.astype(np.int64)
    if (
        bounds.ndim != 1
        or not len(bounds)
        or bounds[0] != 0
        or bounds[-1] != len(ids)
        or np.any(bounds[:-1] > bounds[1:])
    ):
        raise ValueError(
            f"{source}: offsets must be sorted, from 0 to {len(ids)}, the number of ids; sequence "
            "i is ids[offsets[i]:offsets[i + 1]]"
        )
    first = 0
    while first < len(bounds) - 1:
        start = bounds[first]
        last = max(int(np.searchsorted(bounds, start + _CHUNK_IDS, "right")) - 1, first + 1)
        segment = ids[start : bounds[last]]
        if segment.size and segment.min() < 0:
            raise ValueError(
                f"{source}: contains {segment.min()}; {_VALID_IDS} (negative numbers are padding "
                "in two-dimensional arrays only)"
            )
        yield segment, bounds[first + 1 : last + 1] - start
        first = last


def _scan_segment(ids: NDArray[Any], ends: NDArray[np.int64]) -> ScannedChunk:
    distinct, numbers = np.unique(ids, return_inverse=True)
    line_ends = ends + np.arange(len(ends))
    is_id = np.ones(len(ids) + len(ends), dtype=np.bool_)
    is_id[line_ends] = False
    indices = np.zeros(len(is_id), dtype=np.min_scalar_type(len(distinct)))
    indices[is_id] = numbers + 1
    words = " ".join([LINE_END, *map(str, distinct.tolist())])
    return ScannedChunk(words, indices)
