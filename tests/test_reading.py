"""What is no file is refused instead of waited for."""

import os

import pytest
from fuzz.cases import limited_memory, limited_time
from fuzz.mutations import put_in_place

from zipflm.messages import read_file, require_file


def test_a_file_is_read_also_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link", max_bytes=3) == b"abc"


@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link", "link loop", "device"])
def test_anything_else_is_refused_at_once(tmp_path, kind):
    put_in_place(tmp_path / "file", kind)
    with limited_time(), limited_memory(), pytest.raises(ValueError, match="file: not a file"):
        read_file(tmp_path / "file")


def test_what_is_not_there_is_for_opening_to_tell(tmp_path):
    require_file(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent")


def test_a_file_larger_than_it_can_be_is_not_read(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        os.truncate(file.fileno(), 2**40)
    with limited_memory(), pytest.raises(ValueError, match="file: larger than 99 bytes"):
        read_file(tmp_path / "file", max_bytes=99)
