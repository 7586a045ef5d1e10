"""A folder has one writer at a time, whatever becomes of the processes that want to be it."""

import errno
import fcntl
import json
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
from child_code import killed, start, waiting

from zipflm.locks import InUse, locked

HOLD = "with locked(Path(sys.argv[1]), 'the folder'): say('ready'); time.sleep(60)"


def refused(path):
    """What somebody is told who asks for the lock now."""
    with pytest.raises(InUse) as error, locked(path, "runs/a"):
        pytest.fail("it must be refused")
    return str(error.value)


def test_a_lock_is_held_until_the_end_and_leaves_nothing(tmp_path):
    path = tmp_path / ".lock"
    for _ in range(2):
        with locked(path, "runs/a") as is_locked:
            assert is_locked and path.exists()
            refused(path)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_releases_it(tmp_path, error):
    with pytest.raises(error), locked(tmp_path / "new" / ".lock", "runs/a"):
        raise error
    assert os.listdir(tmp_path) == []


def test_the_second_process_is_told_who_holds_it_and_since_when(tmp_path):
    path = tmp_path / ".lock"
    with waiting(HOLD, path) as holder:
        expected = (
            rf"runs/a: in use by process {holder.pid} on {re.escape(platform.node())} "
            r"\(-c \S+/\.lock, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S*\); wait until it has "
            "ended, or choose another folder"
        )
        assert re.fullmatch(expected, refused(path))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/usr/bin/zipflm", "train", "tiny/SM"], "zipflm train"),
        (["/lib/zipflm/__main__.py", "compare"], "zipflm compare"),
        (["study.py"], "study"),
        ([""], "python"),
    ],
)
def test_the_holder_is_named_by_its_command(tmp_path, monkeypatch, arguments, command):
    path = tmp_path / ".lock"
    monkeypatch.setattr(sys, "argv", arguments)
    with locked(path, "runs/a"):
        assert json.loads(path.read_text())["command"] == command


def test_a_killed_holder_leaves_a_file_that_is_no_lock(tmp_path):
    path = tmp_path / ".lock"
    killed("with locked(Path(sys.argv[1]), ''): die()", path)
    dead = json.loads(path.read_text())["process"]
    with locked(path, "runs/a"):
        held = json.loads(path.read_text())
        assert held["process"] == os.getpid() != dead
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\0", b"x" * 100_000, b'{"process": 1}'])
def test_whatever_a_lock_file_holds_it_is_taken_over(tmp_path, content):
    path = tmp_path / ".lock"
    path.write_bytes(content)
    with locked(path, "runs/a"):
        assert json.loads(path.read_text())["process"] == os.getpid()
        path.write_bytes(content)
        assert "in use by another process; wait" in refused(path)


RACE = """
path, marks = Path(sys.argv[1]), Path(sys.argv[2])
won = lost = 0
say("ready")
sys.stdin.readline()
while won < 200:
    try:
        with locked(path, "it"):
            # Only one at a time can make this file, and remove it again.
            os.close(os.open(marks / "inside", os.O_CREAT | os.O_EXCL))
            os.unlink(marks / "inside")
            won += 1
    except InUse:
        lost += 1
say(lost)
"""


def test_two_processes_that_race_are_never_both_inside(tmp_path):
    """Each takes the lock two hundred times, in a folder that comes and goes meanwhile."""
    marks = tmp_path / "marks"
    marks.mkdir()
    children = [start(RACE, tmp_path / "new" / ".lock", marks, stdin=-1) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum(map(int, said)) > 0, "they never met, so nothing was tested"
    # The folder may stay: the one who made it could not remove it while the other was in it.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_forked_child_neither_keeps_nor_releases_its_parents_lock(tmp_path):
    path = tmp_path / ".lock"
    code = """
        with locked(Path(sys.argv[1]), ""):
            child = os.fork()
            if child == 0:
                if sys.argv[2] == "leaves":
                    sys.exit()  # through the end of the context
                say("ready")
                time.sleep(60)
            if sys.argv[2] == "leaves":
                os.waitpid(child, 0)
                say("ready")
            time.sleep(60)
        """
    with waiting(code, path, "leaves") as parent:
        assert f"process {parent.pid} " in refused(path)
    with waiting(code, path, "stays") as parent:
        assert f"process {parent.pid} " in refused(path)
        parent.kill()
        parent.wait()
        with locked(path, "runs/a"):
            pass


@contextmanager
def as_nobody():
    """Permissions do not hold for root, who runs the tests in a container."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("inner", ["", "new"])
def test_a_folder_that_cannot_be_written_to_is_named(inner):
    # Not below pytest's own folder, which nobody else may enter.
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        with as_nobody(), pytest.raises(ValueError) as error:
            with locked(folder / inner / ".lock", "runs/a"):
                pytest.fail("it must be refused")
        assert str(error.value) == (
            "runs/a: cannot be written to (Permission denied); give a folder that can"
        )
        assert os.listdir(folder) == []
    finally:
        folder.chmod(stat.S_IRWXU)
        shutil.rmtree(folder)


@pytest.mark.parametrize("place", ["file", "file/in/it"])
def test_a_file_instead_of_a_folder_is_named(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=f"^{tmp_path}/file: is a file; give a folder as --out"):
        with locked(tmp_path / place / ".lock", "runs/a"):
            pytest.fail("it must be refused")
    assert (tmp_path / "file").read_text() == "x" and os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_made_is_an_error_and_not_waited_for():
    with pytest.raises(ValueError, match="^runs/a: cannot be made"):
        with locked(Path("/proc/nothing/there/.lock"), "runs/a"):
            pytest.fail("it must be refused")


def test_a_file_system_without_locks_gets_a_warning(tmp_path, no_locks):
    """Whoever works there has no choice of file system; refusing would help nobody."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for number in range(3):
            with locked(tmp_path / f".{number}.lock", f"update {number}") as is_locked:
                assert not is_locked
    (warning,) = warned  # once, though there are several locks
    assert str(warning.message) == (
        f"{tmp_path}: its file system has no locks ({os.strerror(no_locks)}); make sure yourself "
        "that no other process writes there"
    )
    assert os.listdir(tmp_path) == []


def test_another_failure_of_the_system_is_an_error(tmp_path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output"), locked(tmp_path / "new" / ".lock", "it"):
        pytest.fail("it must be refused")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_costs_the_holder_its_name_and_no_more(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / ".lock"
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with locked(path, "runs/a"):
            assert "in use by another process" in refused(path)
