import mmap
import struct
import zipfile

import pytest
from interop.pickles import archive

from zipflm.interop.zip_archive import read_directory, read_member

CONTENT = bytes(range(256)) * 40
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]


def mapped(data):
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def entries(data):
    """Where the central directory's entries begin."""
    starts, place = [], data.find(b"PK\1\2")
    while place >= 0:
        starts.append(place)
        place = data.find(b"PK\1\2", place + 1)
    return starts


def changed(data, place, new):
    return data[:place] + new + data[place + len(new) :]


def read(data):
    memory = mapped(data)
    return {name: bytes(read_member(memory, m)) for name, m in read_directory(memory).items()}


@pytest.mark.parametrize("method", METHODS)
def test_members_are_read(method):
    members = {"a/x": CONTENT, "a/empty": b"", "a/\u00e9": b"name", "a/": b""}
    assert read(archive(members.items(), method=method)) == members


def test_stored_members_are_not_copied():
    memory = mapped(archive([("a/x", CONTENT)]))
    view = read_member(memory, read_directory(memory)["a/x"])
    memory[memory.find(CONTENT)] = 77
    assert view[0] == 77


@pytest.mark.parametrize("method", METHODS)
def test_every_changed_bit_of_a_member_is_found(method):
    data = archive([("a/x", CONTENT[:300]), ("a/y", CONTENT)], method=method)
    start = 30 + len("a/x")
    size = read_directory(mapped(data))["a/x"].packed
    for place in range(start, start + size):
        damaged = changed(data, place, bytes([data[place] ^ 1 << place % 8]))
        with pytest.raises(ValueError, match="cut short or damaged: member 'a/x': "):
            read(damaged)


def test_a_wrong_checksum_is_named():
    data = archive([("a/x", CONTENT)])
    with pytest.raises(ValueError, match="member 'a/x': its checksum is wrong"):
        read(data.replace(CONTENT, CONTENT[::-1], 1))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_short_archive_is_refused(share):
    data = archive([("a/x", CONTENT)])
    with pytest.raises(ValueError, match="cut short or damaged: "):
        read(data[: int(share * len(data))])


@pytest.mark.parametrize("second", ["a/x", "A/X", "a/X"])
def test_names_that_occur_twice_are_refused(second):
    with pytest.raises(ValueError, match=f"because it holds '{second}' twice"):
        read(archive([("a/x", b"1"), (second, b"2")]))


def test_members_inside_of_others_are_refused():
    inner = archive([("a/y", b"inside")])
    data = archive([("a/x", inner), ("a/y", b"inside")])
    outer_y = data.rindex(b"PK\3\4")
    inner_y = data.index(inner)
    entry = entries(data)[-1]
    assert struct.unpack_from("<I", data, entry + 42)[0] == outer_y
    with pytest.raises(ValueError, match="member 'a/x' reaches into the next"):
        read(changed(data, entry + 42, struct.pack("<I", inner_y)))


def test_members_that_reach_into_the_directory_are_refused():
    data = archive([("a/x", CONTENT)])
    size = struct.pack("<I", len(CONTENT) + 10)
    entry = entries(data)[0]
    with pytest.raises(ValueError, match="member 'a/x' reaches into the next"):
        read(changed(data, entry + 20, size * 2))


@pytest.mark.parametrize(
    ("place", "new", "reason"),
    [
        (8, b"\1", "'a/x' is encrypted"),
        (10, b"\x0e", "'a/x' is compressed by another method than deflate"),
        (20, b"\1", "'a/x': it has two sizes"),
        (46, b"b", "'b/x': its header is another's"),
        (42, b"\1", "'a/x': its header is another's"),
        (42, b"\xff\xff\xff\x7f", "'a/x': its header is missing"),
    ],
    ids=["encrypted", "lzma", "sizes", "name", "place", "far"],
)
def test_a_directory_that_tells_another_story_is_refused(place, new, reason):
    data = archive([("a/x", CONTENT)])
    with pytest.raises(ValueError, match=reason):
        read(changed(data, entries(data)[0] + place, new))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_of_compression_are_refused(method):
    with pytest.raises(ValueError, match="compressed by another method than deflate"):
        read(archive([("a/x", CONTENT)], method=method))


def test_an_archive_that_unpacks_to_far_more_is_refused():
    zeros = archive([("a/x", bytes(2**22))], method=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="refused, because it would unpack to 4,194,304 bytes"):
        read(zeros)
    assert read(archive([("a/x", bytes(2**19))], method=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("size", [1, len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_deflated_member_of_another_size_is_refused(size):
    data = archive([("a/x", CONTENT)], method=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="member 'a/x': "):
        read(changed(data, entries(data)[0] + 24, struct.pack("<I", size)))


def test_names_are_shown_safely():
    data = archive([("a/\x1b[2J", CONTENT)])
    with pytest.raises(ValueError, match=r"member 'a/\\x1b\[2J': its checksum"):
        read(data.replace(CONTENT, CONTENT[::-1], 1))
