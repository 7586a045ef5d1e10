"""Files are there whole or not at all, whatever happens while they are written."""

import errno
import os
import stat

import pytest
from child_code import killed

from zipflm.storage import DiskFull, file_hash, naming_full_disk, write_whole, written_whole


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("one\n", "two\n\u00e9\r\n"):
        write_whole(path, text)
        assert path.read_bytes() == text.encode()
        assert os.listdir(tmp_path) == ["file.txt"]


AT = {
    "writing": """
        with written_whole(Path(sys.argv[1])) as unfinished:
            unfinished.write_text("half of the n")
            die()
        """,
    "flushing": "os.fsync = die; write_whole(Path(sys.argv[1]), 'new')",
    "renaming": "os.replace = die; write_whole(Path(sys.argv[1]), 'new')",
}


@pytest.mark.parametrize("moment", AT)
def test_a_process_killed_before_the_rename_leaves_the_old_content(tmp_path, moment):
    path = tmp_path / "file.txt"
    write_whole(path, "old")
    killed(AT[moment], path)
    assert path.read_text() == "old"
    # What it left does not stand in the way, and goes with the next try.
    assert len(os.listdir(tmp_path)) == 2
    write_whole(path, "new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file.txt"]


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Otherwise a power cut could leave the new name with nothing in it."""
    events = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def seen_replace(old, new):
        events.append("renamed")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    write_whole(tmp_path / "file.txt", "content")
    unfinished, renamed, folder = events
    assert os.path.dirname(unfinished) == str(tmp_path.resolve()) == folder
    assert renamed == "renamed"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file.txt"
    write_whole(path, "old")
    with pytest.raises(error), written_whole(path) as unfinished:
        unfinished.write_text("half")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_the_unfinished_file_ends_like_the_finished_one(tmp_path):
    with written_whole(tmp_path / "figure.svg") as unfinished:
        assert unfinished.suffix == ".svg" and unfinished.parent == tmp_path
        unfinished.touch()


def test_a_file_gets_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_of_several_names_for_a_full_disk_the_outermost_is_said(tmp_path):
    with pytest.raises(DiskFull, match="study: No space left on device while writing it; go on$"):
        with naming_full_disk(tmp_path / "study", "go on"):
            with naming_full_disk(tmp_path / "study" / "inner", "never mind"):
                raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_of_the_system_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError, match="not yours"):
        with naming_full_disk(tmp_path, "free some space"):
            raise PermissionError(errno.EACCES, "not yours")


def test_the_hash_is_that_of_the_content(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    # FIPS 180-2, the first of its examples.
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_hash(tmp_path / "file") == expected
