"""Files and folders are there whole or not at all, whatever happens while they are written."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
from training_runs import environment

from zipflm.files import (
    DiskFull,
    file_hash,
    naming_full_disk,
    new_folder,
    refuse_existing,
    write_whole,
    written_whole,
)


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


START = """
import os, signal, sys
from pathlib import Path
from zipflm.files import new_folder, write_whole, written_whole

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(code, *arguments):
    """Run Python code in a process that kills itself with `die()`."""
    command = [sys.executable, "-c", START + textwrap.dedent(code), *map(str, arguments)]
    assert subprocess.run(command, env=environment()).returncode == -signal.SIGKILL


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


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "new" / "out"
    with new_folder(out) as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").write_text("x")
        assert not out.exists()
        assert unfinished.name.startswith(".")
    assert (out / "inner" / "file").read_text() == "x"
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_a_folder_vanishes_on_an_error_with_the_parents_made_for_it(tmp_path, error):
    (tmp_path / "there").mkdir()
    with pytest.raises(error), new_folder(tmp_path / "there" / "a" / "b" / "out") as unfinished:
        (unfinished / "file").write_text("x")
        raise error
    assert os.listdir(tmp_path) == ["there"] and os.listdir(tmp_path / "there") == []


def test_a_folder_that_others_use_meanwhile_stays_and_the_error_is_ours(tmp_path):
    with pytest.raises(ValueError, match="the true reason"), new_folder(tmp_path / "new" / "out"):
        (tmp_path / "new" / "theirs").touch()
        raise ValueError("the true reason")
    assert os.listdir(tmp_path / "new") == ["theirs"]


def test_a_killed_process_leaves_no_folder_of_that_name(tmp_path):
    code = """
        with new_folder(sys.argv[1]) as unfinished:
            (unfinished / "file").write_text("x")
            die()
        """
    killed(code, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with new_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").is_dir()


def test_what_is_there_already_is_not_touched(tmp_path):
    (tmp_path / "file").touch()
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for out in (tmp_path / "file", full):
        with pytest.raises(FileExistsError, match="exists already; choose another --out"):
            refuse_existing(out)
        with pytest.raises(FileExistsError), new_folder(out):
            pytest.fail("it must be refused before anything is made")
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


@pytest.mark.parametrize("kind", ["an empty folder", "a link to one", "a link to nothing"])
def test_a_name_that_is_free_is_taken(tmp_path, kind):
    out, place = tmp_path / "out", tmp_path / "elsewhere" / "place"
    place.parent.mkdir()
    if kind == "an empty folder":
        out.mkdir()
    else:
        out.symlink_to(place)
        if kind == "a link to one":
            place.mkdir()
    with new_folder(out) as unfinished:
        (unfinished / "file").write_text("x")
    assert (out / "file").read_text() == "x"
    assert out.is_symlink() == (kind != "an empty folder")
    assert os.listdir(place.parent) == (["place"] if out.is_symlink() else [])


def test_the_folder_one_is_in_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (".", tmp_path, tmp_path / ".." / tmp_path.name):
        with pytest.raises(FileExistsError, match="is the folder you are in; name a new one"):
            refuse_existing(out)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_permissions_follow_the_umask_which_stays_as_it_was(tmp_path, mask):
    with umask(mask):
        write_whole(tmp_path / "file", "x")
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / "file").touch()
        after = os.umask(mask)
    paths = ("file", "out", "out/file")
    modes = {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in paths}
    assert modes == {"file": 0o666 & ~mask, "out": 0o777 & ~mask, "out/file": 0o666 & ~mask}
    assert after == mask


def test_a_full_disk_is_named_with_what_was_written_and_a_remedy(tmp_path):
    """A limit on the size of files stands in for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(DiskFull) as error, new_folder(tmp_path / "new" / "out") as unfinished:
            (unfinished / "file").write_bytes(b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(error.value) == (
        f"{tmp_path}/new/out: File too large while writing it; nothing was kept; free some space "
        "or choose another --out"
    )
    assert error.value.errno == errno.EFBIG and os.listdir(tmp_path) == []


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
