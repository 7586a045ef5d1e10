"""Tensors in safetensors files, read part by part; each may be spread over several files.

Several processes save one file each, with their shards (see `sharded`). Where a shard lies in
its tensor is in the file's header, as torch writes it. A file without that holds whole tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zipflm.quoting import unquoted
from zipflm.reading import require_file
from zipflm.runs.building import Part

_SHARDS = "DCP_SHARDING_INFO"
_OFFSETS = "saved_offsets"
"""Torch's keys, of `torch.distributed.checkpoint`'s Hugging Face storage."""
_NO_PLACES = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading a header runs into that has something else there."""


@dataclass(frozen=True)
class _Piece:
    """A shard of a tensor, or all of it, in one file."""

    file: Any
    path: Path
    start: tuple[int, ...]
    size: tuple[int, ...]
    dtype: str

    def within(self, part: Part) -> Part:
        """What `part` and this piece share, in places of the whole tensor."""
        return tuple(
            slice(max(wanted.start, start), min(wanted.stop, start + size))
            for wanted, start, size in zip(part, self.start, self.size, strict=True)
        )


class StoredTensors:
    """All tensors of one or more files. Nothing but headers is read before it is asked for.

    What is read lies in memory of its own, so that the files may be removed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """ValueError, naming the file, if one is missing or damaged."""
        self._pieces: dict[str, list[_Piece]] = {}
        self._empty: dict[str, _Piece] = {}
        for path in paths:
            with _naming(path):
                self._add(path)
        for name, piece in self._empty.items():  # that of a tensor without a number is all there is
            self._pieces.setdefault(name, [piece])
        self._shapes = {name: _whole_shape(name, each) for name, each in self._pieces.items()}

    def _add(self, path: Path) -> None:
        require_file(path)
        file: Any = safe_open(path, framework="pt")  # it has no types
        starts = _starts(file.metadata() or {}, path)
        for name in file.keys():
            stored = file.get_slice(name)
            size, dtype = tuple(stored.get_shape()), stored.get_dtype()
            start = starts.get(name, (0,) * len(size))
            if len(start) != len(size):
                raise _damaged(path, f"{name} has {len(size)} dimensions")
            piece = _Piece(file, path, start, size, dtype)
            if name in starts and not prod(size):
                self._empty[name] = piece  # of a short tensor some processes have nothing
                continue
            self._pieces.setdefault(name, []).append(piece)

    @property
    def names(self) -> list[str]:
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str, part: Part = ()) -> Tensor:
        """This part of a tensor, or all of it."""
        part = part or tuple(slice(0, size) for size in self._shapes[name])
        sizes = [wanted.stop - wanted.start for wanted in part]
        result = torch.empty(sizes)
        for index, piece in enumerate(self._pieces[name]):
            shared = piece.within(part)
            with _naming(piece.path):
                stored = piece.file.get_slice(name)
                found = stored[_moved(shared, piece.start)] if part else piece.file.get_tensor(name)
            if index == 0:
                result = result.to(found.dtype)
            if all(each.start < each.stop for each in shared):
                result[_moved(shared, [wanted.start for wanted in part])] = found
        return result


def _moved(part: Part, start: Sequence[int]) -> Part:
    """The part in places of what begins at `start`."""
    return tuple(
        slice(each.start - first, max(each.stop - first, each.start - first))
        for each, first in zip(part, start, strict=True)
    )


def _whole_shape(name: str, pieces: Sequence[_Piece]) -> tuple[int, ...]:
    """The shape of a tensor; ValueError unless the pieces make up all of it."""
    first = pieces[0]
    for piece in pieces:
        if (
            piece.dtype != first.dtype
            or len(piece.size) != len(first.size)
            or min(piece.start, default=0) < 0
        ):
            raise _damaged(piece.path, f"its {name} does not fit that of {first.path.name}")
    ends = [[a + n for a, n in zip(p.start, p.size, strict=True)] for p in pieces]
    shape = tuple(max(column) for column in zip(*ends, strict=True))
    held = sum(prod(piece.size) for piece in pieces)
    if held != prod(shape):
        raise ValueError(
            f"{first.path}: holds, with the shards beside it, {held} of the {prod(shape)} numbers "
            f"of {unquoted(name)}; a file is missing, or is of another checkpoint"
        )
    return shape


def _starts(header: Mapping[str, str], path: Path) -> dict[str, tuple[int, ...]]:
    """Where each shard of a file begins in its tensor; empty for a file of whole tensors."""
    try:
        shards = json.loads(header.get(_SHARDS, "{}"))
        return {name: tuple(map(int, shard[_OFFSETS])) for name, shard in shards.items()}
    except _NO_PLACES as error:
        raise _damaged(path, f"{_SHARDS}: {error}") from None


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: cut short or damaged: {unquoted(reason)}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """ValueError with the file's name for whatever is wrong with it."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from this checkpoint") from None
    except SafetensorError as error:
        raise _damaged(path, str(error)) from None
