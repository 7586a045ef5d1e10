"""A split whose token file is cut into several, `train.000.tokens` and on, read as one.

Every shard is a whole token file of whole sentences, mapped on its own, so that no file grows
beyond what a file system or a copy can handle. Whoever reads sees one row of ids: a slice within
a shard is a view of its map, and only one that crosses into the next shard is a copy. A split that
fits into one shard is the one file it has always been.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from zipflm.data.tokens import Ids, TokenFile, TokenWriter

SHARD_TOKENS = 4_000_000_000
"""Tokens in a file unless somebody says otherwise: 8 to 16 GB."""


MOST_SHARDS = 500
"""Files of a split: a process may commonly have 1024 of them open, and has others as well."""


def shard_names(file: str, shards: int) -> tuple[str, ...]:
    """The files of a split whose one file would be called `file`.

    >>> shard_names("train.tokens", 1), shard_names("train.tokens", 2)
    (('train.tokens',), ('train.000.tokens', 'train.001.tokens'))
    """
    if shards == 1:
        return (file,)
    stem, dot, suffix = file.rpartition(".")
    return tuple(f"{stem}.{number:03d}{dot}{suffix}" for number in range(shards))


class ShardedIds(NDArrayOperatorsMixin):
    """Ids of several shards that index like one array, which they become only if asked to.

    Comparing or computing with all of them, or `np.asarray`, copies them into memory, as held-out
    texts can afford; slices and lists of positions, as batches take them, do not.
    """

    def __init__(self, shards: Sequence[Ids]) -> None:
        self._shards = list(shards)
        self._starts = np.cumsum([0, *map(len, shards)])
        self.dtype: np.dtype[np.unsignedinteger[Any]] = self._shards[0].dtype
        self.shape: tuple[int] = (int(self._starts[-1]),)
        self.ndim: int = 1

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        return len(self)

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._stretch(start, stop) if step == 1 else self[np.arange(start, stop, step)]
        places = np.asarray(key)
        if places.dtype == np.bool_:
            if places.shape != self.shape:
                raise IndexError(f"a mask of shape {places.shape} for {len(self)} ids")
            places = np.flatnonzero(places)
        return self._gather(places) if places.size else np.zeros(places.shape, self.dtype)

    def _stretch(self, start: int, stop: int) -> Ids:
        first = max(int(np.searchsorted(self._starts, start, "right")) - 1, 0)
        pieces: list[Ids] = []
        for shard, offset in zip(self._shards[first:], self._starts[first:].tolist(), strict=False):
            if pieces and offset >= stop:
                break
            pieces.append(shard[max(start - offset, 0) : max(stop - offset, 0)])
        if not pieces:
            return self._shards[-1][:0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _gather(self, places: NDArray[Any]) -> Any:
        low, high = int(places.min()), int(places.max())
        if low < -len(self) or high >= len(self):
            wrong = low if low < -len(self) else high
            raise IndexError(f"id {wrong} of {len(self)}")
        if low < 0:
            places = np.where(places < 0, places.astype(np.int64) + len(self), places)
            low, high = int(places.min()), int(places.max())
        first, last = (int(n) for n in np.searchsorted(self._starts, (low, high), "right") - 1)
        if first == last:  # as for almost all batches
            return self._shards[first][places - self._starts[first].astype(places.dtype)]
        found, kind = np.empty(places.shape, self.dtype), places.dtype
        shard_of = np.searchsorted(self._starts, places, "right") - 1
        for number in range(first, last + 1):
            here = shard_of == number
            # Of one type: NumPy makes floats of the difference of uint64 and int64.
            found[here] = self._shards[number][places[here] - self._starts[number].astype(kind)]
        return found

    def __iter__(self) -> Iterator[Any]:
        for shard in self._shards:
            yield from shard

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("ids of several shards become one array only by copying them")
        return np.concatenate(self._shards).astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(x) if isinstance(x, ShardedIds) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def astype(self, dtype: Any) -> NDArray[Any]:
        return np.asarray(self, dtype=dtype)

    def tolist(self) -> list[int]:
        return [number for shard in self._shards for number in shard.tolist()]


class ShardedTokens:
    """The shards of one split, with the attributes of a `TokenFile`."""

    def __init__(self, paths: Sequence[str | PathLike[str]]) -> None:
        """Open the files in their order; ValueError or OSError, naming the one that is amiss."""
        self._files = [TokenFile(path) for path in paths]
        first = self._files[0]
        self.path: str = first.path
        self.vocabulary_size: int = first.vocabulary_size
        self.vocabulary_hash: str = first.vocabulary_hash
        for file in self._files:
            if file.vocabulary_size != self.vocabulary_size:
                raise ValueError(
                    f"{file.path}: made for {file.vocabulary_size} ids, but {first.path} for "
                    f"{self.vocabulary_size}; prepare the data again"
                )
        self.num_sentences: int = sum(file.num_sentences for file in self._files)
        # For whoever takes ids out of it, it is an array.
        self.ids: Ids = cast(Ids, ShardedIds([file.ids for file in self._files]))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """Start of every sentence, then the number of tokens: in memory, 8 bytes a sentence, which
        is what a plan of whole sentences takes anyhow. Blocks of tokens do not need it."""
        return self._offsets

    @cached_property
    def _offsets(self) -> NDArray[np.uint64]:
        starts = np.cumsum([0, *map(len, self._files)]).astype(np.uint64)
        pieces = [file.offsets[:-1] + at for file, at in zip(self._files, starts, strict=False)]
        return np.concatenate([*pieces, starts[-1:]])

    def require_whole(self) -> None:
        """ValueError, naming the file, if one has been cut or added to since it was opened."""
        for file in self._files:
            file.require_whole()

    def require_vocabulary(self, digest: str) -> None:
        """ValueError, naming both hashes, unless all files were made with that vocabulary."""
        for file in self._files:
            file.require_vocabulary(digest)


SplitTokens = TokenFile | ShardedTokens


def open_tokens(paths: Sequence[str | PathLike[str]]) -> SplitTokens:
    """A split from its files."""
    return TokenFile(paths[0]) if len(paths) == 1 else ShardedTokens(paths)


class ShardWriter:
    """Writes a split sentence by sentence, into another file whenever one is full.

    `files` are the names; a single one is called what `path` says.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        vocabulary_size: int,
        digest: str,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self._path, self._facts = Path(path), (vocabulary_size, digest)
        self._shard_tokens = shard_tokens
        self.num_tokens: int = 0
        self.num_sentences: int = 0
        self._closed = 0
        self._writer = TokenWriter(path, *self._facts)

    @property
    def files(self) -> tuple[str, ...]:
        return shard_names(self._path.name, self._closed + 1)

    def write(self, ids: NDArray[Any], ends: NDArray[Any]) -> None:
        """Append whole sentences; `ends` are the positions just behind each of them.

        A sentence that is longer than a shard has one to itself.
        """
        if len(ids) != (ends[-1] if len(ends) else 0):
            raise ValueError(f"{self._path}: shards hold whole sentences, not parts of them")
        self.num_tokens += len(ids)
        self.num_sentences += len(ends)
        while len(ends):
            room = self._shard_tokens - self._writer.num_tokens
            fitting = int(np.searchsorted(ends, room, "right"))
            if not self._writer.num_tokens:
                fitting = max(fitting, 1)
            cut = int(ends[fitting - 1]) if fitting else 0
            self._writer.write(ids[:cut], ends[:fitting])
            ids, ends = ids[cut:], ends[fitting:] - cut
            if len(ends):
                self._begin_shard()

    def _begin_shard(self) -> None:
        if self._closed + 1 == MOST_SHARDS:
            raise ValueError(
                f"--shard-size {self._shard_tokens}: {self._path.name} would be more than "
                f"{MOST_SHARDS} files, which are all opened at once to be read; give a larger one"
            )
        self._writer.__exit__(None, None, None)
        self._closed += 1
        *closed, new = self.files
        if self._closed == 1:  # only now is it known that there will be several
            os.rename(self._path, self._path.with_name(closed[0]))
        self._writer = TokenWriter(self._path.with_name(new), *self._facts)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, traceback)
