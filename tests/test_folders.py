"""Folders are there whole or not at all, and one process at a time writes into them."""

import errno
import os
import resource
import signal
import stat
from contextlib import contextmanager, suppress

import pytest
from child_code import killed, waiting

from zipflm import storage
from zipflm.storage import (
    DiskFull,
    InUse,
    clear_abandoned,
    new_folder,
    refuse_existing,
    sole_writer,
)


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "new" / "out"
    with new_folder(out) as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").write_text("x")
        assert not out.exists()
        assert unfinished.name.startswith(".")
    assert (out / "inner" / "file").read_text() == "x"
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_vanishes_on_an_error_with_the_parents_made_for_it(tmp_path, error):
    (tmp_path / "there").mkdir()
    with pytest.raises(error), new_folder(tmp_path / "there" / "a" / "b" / "out") as unfinished:
        (unfinished / "file").write_text("x")
        raise error
    assert os.listdir(tmp_path) == ["there"] and os.listdir(tmp_path / "there") == []


def test_a_killed_process_leaves_no_folder_of_that_name_and_the_next_one_cleans_up(tmp_path):
    code = """
        with new_folder(sys.argv[1]) as unfinished:
            (unfinished / "file").write_text("x")
            die()
        """
    killed(code, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(os.listdir(tmp_path)) == 2  # what it had written, and its lock
    with new_folder(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == ["out"]


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


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_follow_the_umask_which_stays_as_it_was(tmp_path, mask):
    with umask(mask):
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / "file").touch()
        after = os.umask(mask)
    paths = ("out", "out/file")
    modes = {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in paths}
    assert modes == {"out": 0o777 & ~mask, "out/file": 0o666 & ~mask}
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


MAKE = """
with new_folder(sys.argv[1]) as unfinished:
    (unfinished / "file").write_text("of the first")
    say("ready")
    time.sleep(60)
"""


def test_of_two_processes_that_make_a_folder_the_second_is_told_of_the_first(tmp_path):
    out = tmp_path / "new" / "out"
    with waiting(MAKE, out) as first:
        before = sorted(path.name for path in out.parent.iterdir())
        with pytest.raises(InUse, match=rf"^{out}: in use by process {first.pid} on "):
            with new_folder(out):
                pytest.fail("it must be refused before anything is made")
        assert sorted(path.name for path in out.parent.iterdir()) == before
        # Another name is free.
        with new_folder(out.with_name("other")):
            pass


def test_what_was_made_while_we_waited_for_the_lock_is_not_overwritten(tmp_path, monkeypatch):
    """The first process has renamed its folder and released the lock just before we take it."""
    out = tmp_path / "out"
    take = storage.locked

    def locked_late(path, what):
        out.mkdir()
        (out / "file").write_text("of the first")
        return take(path, what)

    monkeypatch.setattr(storage, "locked", locked_late)
    with pytest.raises(FileExistsError), new_folder(out):
        pytest.fail("it must be refused")
    assert (out / "file").read_text() == "of the first" and os.listdir(tmp_path) == ["out"]


def test_only_what_was_left_of_this_very_folder_is_removed(tmp_path):
    others = [".out.unfinished-x", ".out.unfinished-x.unfinished-12345678", ".outs.unfinished-x"]
    others += [".out.unfinished-1234567", ".other.unfinished-12345678", "out.unfinished-12345678"]
    for name in (*others, ".out.unfinished-ab_d5678"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with new_folder(tmp_path / "out"):
        pass
    assert set(os.listdir(tmp_path)) == {*others, "out"}


def test_without_locks_nothing_is_removed_that_may_be_in_use(tmp_path, no_locks):
    (tmp_path / ".out.unfinished-12345678").mkdir()
    with pytest.warns(RuntimeWarning, match="has no locks"), new_folder(tmp_path / "out"):
        pass
    assert set(os.listdir(tmp_path)) == {".out.unfinished-12345678", "out"}
    (tmp_path / "out" / ".unfinished-file").touch()
    with pytest.warns(RuntimeWarning, match="has no locks"), sole_writer(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path / "out") == [".unfinished-file"]


def test_a_folder_has_one_writer(tmp_path):
    run = tmp_path / "run"
    code = "with sole_writer(Path(sys.argv[1])): say('ready'); time.sleep(60)"
    with waiting(code, run) as first:
        with pytest.raises(InUse, match=rf"^{run}: in use by process {first.pid} on "):
            with sole_writer(run):
                pytest.fail("it must be refused")
        # By another name it is the same folder.
        (tmp_path / "link").symlink_to(run)
        with pytest.raises(InUse), sole_writer(tmp_path / "link"):
            pytest.fail("it must be refused")
    with sole_writer(run):
        pass


def test_the_sole_writer_removes_what_a_killed_one_left_unfinished(tmp_path):
    run = tmp_path / "run"
    code = """
        with sole_writer(Path(sys.argv[1])), written_whole(Path(sys.argv[1]) / "file") as half:
            half.write_text("half")
            die()
        """
    killed(code, run)
    assert sorted(os.listdir(run)) == [".lock", ".unfinished-file"]
    (run / "whole").touch()
    inner = run / "another-run" / ".unfinished-file"  # perhaps of a process that lives
    inner.parent.mkdir()
    inner.touch()
    with sole_writer(run):
        assert sorted(os.listdir(run)) == [".lock", "another-run", "whole"]
    assert inner.exists()


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_writer_that_wrote_nothing_leaves_no_folder(tmp_path, error):
    with suppress(ValueError, KeyboardInterrupt), sole_writer(tmp_path / "a" / "run"):
        if error is not None:
            raise error
    assert os.listdir(tmp_path) == []
    with sole_writer(tmp_path / "a" / "run"):
        (tmp_path / "a" / "run" / "file").touch()
    assert os.listdir(tmp_path / "a" / "run") == ["file"]


def test_a_lock_left_beside_a_finished_folder_is_cleared_by_whoever_opens_it(tmp_path):
    out, lock = tmp_path / "out", tmp_path / ".out.lock"
    for meet in (
        clear_abandoned,
        lambda path: pytest.raises(FileExistsError, refuse_existing, path),
    ):
        out.mkdir(exist_ok=True)
        (out / "file").touch()
        lock.write_text("{}")
        meet(out)
        assert os.listdir(tmp_path) == ["out"] and os.listdir(out) == ["file"]


def test_a_lock_beside_a_folder_that_a_living_process_holds_stays(tmp_path):
    with new_folder(tmp_path / "out") as unfinished:
        clear_abandoned(tmp_path / "out")
        assert unfinished.is_dir() and (tmp_path / ".out.lock").is_file()
    assert os.listdir(tmp_path) == ["out"]
