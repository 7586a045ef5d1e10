"""Files are compared with their checksums; a large one only as often as it may have changed."""

import json
import os
import time

import pytest

from zipflm import storage
from zipflm.storage import Verified, read_checksums, require_unchanged, seal

NAME = "train.tokens"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / NAME).write_bytes(b"one bit more or less")
    (tmp_path / "data.json").write_text("{}")
    seal(tmp_path)
    return tmp_path


def flip(path, position=3):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that were read for their checksum."""
    names, file_hash = [], storage.file_hash

    def seen(path):
        names.append(path.name)
        return file_hash(path)

    monkeypatch.setattr(storage, "file_hash", seen)
    return names


@pytest.fixture
def later(monkeypatch):
    """Everything was written long ago."""
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60)


def test_every_file_is_sealed_and_no_checksum_is_computed_that_is_known(folder, hashed):
    (folder / "inner").mkdir()
    (folder / ".verified.json").touch()
    seal(folder, {NAME: "known"})
    assert hashed == ["data.json"]
    sums = read_checksums(folder, ["data.json", NAME])
    assert sums.keys() == {"data.json", NAME} and sums[NAME] == "known"


def test_a_file_without_checksum_is_named(folder):
    with pytest.raises(ValueError, match=r"checksums.json: says nothing of valid.tokens; the fold"):
        read_checksums(folder, [NAME, "valid.tokens"])


def test_a_changed_or_missing_file_is_named(folder):
    sums = read_checksums(folder, [NAME])
    require_unchanged(folder, NAME, sums)
    flip(folder / NAME)
    with pytest.raises(ValueError, match=f"{folder / NAME}: damaged; its checksum is not the one"):
        require_unchanged(folder, NAME, sums)
    (folder / NAME).unlink()
    with pytest.raises(ValueError, match=f"{folder / NAME}: missing, but checksums.json names it"):
        require_unchanged(folder, NAME, sums)


def verify(folder):
    """As another process would."""
    Verified(folder).require_unchanged(NAME, read_checksums(folder, [NAME]))


def test_a_file_is_read_once_while_it_does_not_change(folder, hashed, later):
    for _ in range(3):
        verify(folder)
    assert hashed == [NAME]


def test_a_file_that_was_written_just_now_is_read_again(folder, hashed):
    """Another change within the same tick of the file system's clock would not show."""
    verify(folder)
    verify(folder)
    assert hashed == [NAME, NAME] and not (folder / ".verified.json").exists()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_change_is_noticed_whatever_time_and_size_the_file_has(folder, later, is_replaced):
    verify(folder)
    path, before = folder / NAME, (folder / NAME).stat()
    time.sleep(0.02)  # more than one tick of the file system's clock
    if is_replaced:
        path.rename(folder / "aside")
        path.write_bytes((folder / "aside").read_bytes())
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            verify(folder)


def test_another_checksum_is_not_taken_for_the_one_that_was_compared(folder, later):
    verify(folder)
    with pytest.raises(ValueError, match="damaged"):
        Verified(folder).require_unchanged(NAME, {NAME: "0" * 64})


def test_a_file_that_changes_while_it_is_read_is_not_remembered(folder, later, monkeypatch):
    """Of a long one, the change may be in a part that has been read by then."""
    file_hash = storage.file_hash

    def hash_then_change(path):
        found = file_hash(path)
        time.sleep(0.02)
        flip(path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(storage, "file_hash", hash_then_change)
        verify(folder)
    with pytest.raises(ValueError, match="damaged"):
        verify(folder)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"train.tokens": 3}'])
def test_a_damaged_memory_is_not_believed(folder, hashed, later, content):
    verify(folder)
    (folder / ".verified.json").write_bytes(content)
    verify(folder)
    assert hashed == [NAME, NAME]
    assert json.loads((folder / ".verified.json").read_text()).keys() == {NAME}


def test_where_nothing_can_be_written_the_file_is_read_again(folder, hashed, later, monkeypatch):
    def fail(path, text):
        raise PermissionError("read-only")

    monkeypatch.setattr(storage, "write_whole", fail)
    verify(folder)
    verify(folder)
    assert hashed == [NAME, NAME]
