"""A file of `torch.save`, opened once, read without running anything in it.

Knows both layouts: the zip archive, and the stream from before torch 1.6. The file is mapped into
memory, so that it may be replaced on disk meanwhile, and of the optimizer's half of it nothing is
kept once its checksums are verified. Only what is asked for becomes a tensor.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from zipflm.interop.inert_pickle import MAX_BYTES
from zipflm.interop.messages import listed, shown
from zipflm.interop.torch_pickle import Storage, StoredTensor, TorchUnpickler
from zipflm.interop.zip_archive import Member, read_directory, read_member

_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
_STREAM_VERSION = 1001
_LENGTH = struct.Struct("<q")
_LARGEST_NUMBER = 8  # bytes, of a float64


class TorchFile:
    """The contents of a file, its tensors as `StoredTensor`, and the means to read these."""

    def __init__(self, contents: Any, read_storage: Callable[[str], memoryview]) -> None:
        self.contents = contents
        self._read_storage = read_storage
        self._bytes: dict[str, Tensor] = {}

    def tensor(self, stored: StoredTensor) -> Tensor:
        """A view of the mapped file where possible; writing to it does not change the file."""
        key = stored.storage.key
        if key not in self._bytes:  # once for all views: unpacking takes time and memory
            self._bytes[key] = _as_bytes(self._read_storage(key))
        return stored.of(self._bytes[key].view(stored.storage.dtype))


def _as_bytes(content: memoryview) -> Tensor:
    if content.readonly:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensor = torch.frombuffer(content, dtype=torch.uint8)
    is_aligned = tensor.data_ptr() % _LARGEST_NUMBER == 0
    return tensor if is_aligned else tensor.clone()


def read_torch_file(path: str | PathLike[str]) -> TorchFile:
    """Read a file.

    Raises ValueError for what is damaged, foreign or hostile; the message does not name the file.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError("cut short or damaged: it is empty")
        # Private and writable, as torch wants it: changes would stay in memory.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if data[:2] == b"PK":
        return _read_archive(data)
    try:
        return _read_stream(data)
    except ValueError as error:
        # torch's pickles begin with this; of others only those that mean harm are worth a reason.
        if data[:1] == b"\x80" or str(error).startswith("refused"):
            raise
        raise ValueError("not a checkpoint: torch.save did not write it; name a .pt file") from None


def _read_archive(data: mmap.mmap) -> TorchFile:
    members = _without_folder(read_directory(data))
    if "byteorder" in members:  # otherwise an older file, and little-endian
        order = read_member(data, members["byteorder"])
        _require_byte_order(bytes(order[:10]).decode("latin-1"))
    program = members["data.pkl"]
    if program.size > MAX_BYTES:
        raise ValueError(f"refused, because its pickle is longer than {MAX_BYTES:,} bytes")
    unpickler = TorchUnpickler()
    contents = unpickler.load(io.BytesIO(read_member(data, program)))
    _require_storages(unpickler.storages, members)
    mapped: dict[str, memoryview] = {}
    for name, member in members.items():
        content = read_member(data, member)  # raises if the checksum is wrong
        if not member.deflated:
            mapped[name] = content

    def read_storage(key: str) -> memoryview:
        name = f"data/{key}"
        return mapped[name] if name in mapped else read_member(data, members[name])

    return TorchFile(contents, read_storage)


def _without_folder(members: Mapping[str, Member]) -> dict[str, Member]:
    """Members by their names inside the one folder that holds them all."""
    folders = sorted({name.partition("/")[0] for name in members})
    if len(folders) != 1:
        raise ValueError(
            f"no file of torch: an archive has one folder, but this one {listed(folders) or 'none'}"
        )
    inside = {name.partition("/")[2]: member for name, member in members.items()}
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        raise ValueError("a TorchScript program, not a checkpoint; zipflm runs no code of a file")
    if "data.pkl" not in inside:
        raise ValueError("no file of torch: an archive without data.pkl")
    if others := [n for n in inside if n.casefold().endswith(".pkl") and n != "data.pkl"]:
        raise ValueError(f"refused, because it holds a second pickle, {listed(others)}")
    return inside


def _require_storages(storages: Mapping[str, Storage], members: Mapping[str, Member]) -> None:
    for key, storage in storages.items():
        member = members.get(f"data/{key}")
        if member is None:
            raise _damaged(f"the numbers stored under {shown(key)} are missing")
        if member.size != storage.num_bytes:
            raise _damaged(
                f"{shown(member.name)} has {member.size:,} bytes, not {storage.num_bytes:,}"
            )


def _read_stream(data: mmap.mmap) -> TorchFile:
    """The older layout: five pickles, then each storage as its length and its numbers."""
    stream = io.BytesIO(data[:MAX_BYTES])
    unpickler = TorchUnpickler()
    if unpickler.load(stream) != _STREAM_MAGIC or unpickler.load(stream) != _STREAM_VERSION:
        raise ValueError("no file of torch: a pickle of another program")
    system = unpickler.load(stream)
    little = isinstance(system, dict) and system.get("little_endian", True)
    _require_byte_order("little" if little else "big")
    contents = unpickler.load(stream)
    places = _storage_places(data, stream, unpickler)
    return TorchFile(contents, lambda key: memoryview(data)[places[key]])


def _storage_places(
    data: mmap.mmap, stream: io.BytesIO, unpickler: TorchUnpickler
) -> dict[str, slice]:
    """Where each storage lies; all that are referred to must be there, whole and once."""
    keys = unpickler.load(stream)
    position = stream.tell()
    places: dict[str, slice] = {}
    for key in keys if isinstance(keys, list) else ():
        storage = unpickler.storages.get(key) if isinstance(key, str) else None
        if storage is None or key in places:
            raise _damaged(f"its list of tensors has {shown(key)} twice or for no tensor")
        start = position + _LENGTH.size
        position = start + storage.num_bytes
        if position > len(data):
            raise _damaged(f"the numbers stored under {shown(key)} are cut short")
        (length,) = _LENGTH.unpack_from(data, start - _LENGTH.size)
        if length != storage.length:
            raise _damaged(
                f"{length:,} numbers are stored under {shown(key)}, not {storage.length:,}"
            )
        places[key] = slice(start, position)
    if missing := unpickler.storages.keys() - places.keys():
        raise _damaged(f"its list of tensors lacks those stored under {listed(sorted(missing))}")
    if position != len(data):
        raise _damaged(f"{len(data) - position:,} bytes follow the last tensor")
    return places


def _require_byte_order(order: str) -> None:
    if order != sys.byteorder:
        raise ValueError(f"written on a machine of another byte order, {shown(order)}")


def _damaged(reason: str) -> ValueError:
    return ValueError(f"cut short or damaged: {reason}")
