"""`read_file` rejects pipes, devices and folders instead of waiting for them."""

import pytest
from fuzz.cases import limited_memory, limited_time
from fuzz.mutations import put_in_place

from zipflm.messages import read_file, require_file


def test_reads_files_and_links(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link") == b"abc"


@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link", "link loop", "device"])
def test_rejects_anything_else_at_once(tmp_path, kind):
    put_in_place(tmp_path / "file", kind)
    with limited_time(), limited_memory(), pytest.raises(ValueError, match="file: not a file"):
        read_file(tmp_path / "file")


def test_missing_files_raise_file_not_found(tmp_path):
    require_file(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent")
