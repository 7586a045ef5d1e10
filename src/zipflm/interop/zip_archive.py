"""The members of a zip archive that is mapped into memory: checked, and open to one reading only.

Two programs can see different files in the same archive: because two members share a name, because
names differ only in case, because one member lies inside another. Such archives are refused as a
whole. So are those that unpack to far more than they hold, and those with features that no
checkpoint needs (encryption, and compression by other methods than deflate).
"""

from __future__ import annotations

import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from zipflm.interop.messages import plain_text, shown

# A checkpoint has one member for each tensor, which takes some 60 bytes in the directory.
_MAX_DIRECTORY = 8 * 2**20
_MAX_MEMBERS = 20_000
# Weights hardly shrink. An optimizer's zeros do, and so do pickles, but these are small.
_MAX_RATIO = 5
_SMALL = 2**20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_UTF8_NAME = 0x800
_ENCRYPTED = 0x1
_CHUNK = 2**24
# What `zipfile` raises for bytes that are no directory of an archive.
_DAMAGES = (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error)


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive."""

    name: str
    start: int
    """Where its bytes begin in the archive."""
    packed: int
    """How many bytes it takes there."""
    size: int
    """How many bytes it has when unpacked."""
    crc: int
    deflated: bool


def read_directory(archive: mmap.mmap) -> dict[str, Member]:
    """All members by name; raises ValueError for an archive that is damaged or ambiguous."""
    try:
        with zipfile.ZipFile(_BoundedReader(archive)) as directory:
            entries = directory.infolist()
            end = directory.start_dir
    except _DAMAGES as error:
        raise ValueError(f"cut short or damaged: {plain_text(str(error))}") from None
    if len(entries) > _MAX_MEMBERS:
        raise ValueError(f"an archive of {len(entries):,} files, which no checkpoint has")
    spellings: set[str] = set()
    for entry in entries:
        if entry.filename.casefold() in spellings:
            raise ValueError(f"refused, because it holds {shown(entry.filename)} twice")
        spellings.add(entry.filename.casefold())
    members = [_member(archive, entry) for entry in entries]
    _refuse_overlaps(entries, members, end)
    unpacked = sum(member.size for member in members)
    if unpacked > _MAX_RATIO * len(archive) + _SMALL:
        raise ValueError(
            f"refused, because it would unpack to {unpacked:,} bytes, far more than weights of "
            f"{len(archive):,} packed bytes can be"
        )
    return {member.name: member for member in members}


class _BoundedReader:
    """All that `zipfile` needs of a file, but unwilling to read a directory of any length."""

    def __init__(self, archive: mmap.mmap) -> None:
        self._archive = archive
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + (len(self._archive) if whence == os.SEEK_END else 0)
        if position < 0:
            raise OSError("before the beginning")  # by which zipfile knows a file that is too short
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        begin = min(self._position, len(self._archive))
        end = len(self._archive) if size < 0 else min(begin + size, len(self._archive))
        if end - begin > _MAX_DIRECTORY:
            raise ValueError("its directory is longer than any checkpoint's")
        self._position = end
        return self._archive[begin:end]


def _member(archive: mmap.mmap, entry: zipfile.ZipInfo) -> Member:
    name = shown(entry.filename)
    if entry.flag_bits & _ENCRYPTED:
        raise ValueError(f"its member {name} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its member {name} is compressed by another method than deflate")
    name_start = entry.header_offset + _LOCAL_HEADER.size
    if not 0 <= entry.header_offset < name_start <= len(archive):
        raise _damaged(entry.filename, "its header is missing")
    signature, name_length, extra_length = _LOCAL_HEADER.unpack_from(archive, entry.header_offset)
    name_end = name_start + name_length
    encoding = "utf-8" if entry.flag_bits & _UTF8_NAME else "cp437"
    local_name = archive[name_start:name_end]
    if signature != b"PK\x03\x04" or local_name != entry.orig_filename.encode(encoding):
        raise _damaged(entry.filename, "its header is another's")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and entry.compress_size != entry.file_size:
        raise _damaged(entry.filename, "it has two sizes")
    start = name_end + extra_length
    return Member(entry.filename, start, entry.compress_size, entry.file_size, entry.CRC, deflated)


def _refuse_overlaps(
    entries: Sequence[zipfile.ZipInfo], members: Sequence[Member], end: int
) -> None:
    spans = sorted(
        (entry.header_offset, member.start + member.packed, member.name)
        for entry, member in zip(entries, members, strict=True)
    )
    limits = [begin for begin, _, _ in spans[1:]] + [end]
    for (_, stop, name), limit in zip(spans, limits, strict=True):
        if stop > limit:
            raise ValueError(f"refused, because its member {shown(name)} reaches into the next")


def read_member(archive: mmap.mmap, member: Member) -> memoryview:
    """The bytes of a member; raises ValueError if their number or checksum is wrong.

    A member that is not compressed is not copied either.
    """
    packed = memoryview(archive)[member.start : member.start + member.packed]
    content = memoryview(_inflated(packed, member)) if member.deflated else packed
    if len(content) != member.size:
        raise _damaged(member.name, "it is cut short")
    if _checksum(content) != member.crc:
        raise _damaged(member.name, "its checksum is wrong")
    return content


def _inflated(packed: memoryview, member: Member) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflater.decompress(packed, member.size + 1)  # 0 would mean: without limit
    except zlib.error as error:
        raise _damaged(member.name, str(error)) from None
    if not inflater.eof or inflater.unused_data:
        raise _damaged(member.name, "its compressed data does not end where it should")
    return content


def _checksum(content: memoryview) -> int:
    crc = 0
    for start in range(0, len(content), _CHUNK):  # an interrupt is heard in between
        crc = zlib.crc32(content[start : start + _CHUNK], crc)
    return crc


def _damaged(name: str, reason: str) -> ValueError:
    return ValueError(f"cut short or damaged: member {shown(name)}: {reason}")
