"""A folder has one writer at a time, whatever becomes of the processes."""

import errno
import fcntl
import os
import platform
import re
import warnings

import pytest
from child_code import killed, start, waiting

from zipflm.storage import InUse, locked

HOLD = "with locked(Path(sys.argv[1]), 'the folder'): say('ready'); time.sleep(60)"


def refused(path):
    """The error for a second process."""
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


def test_an_error_releases_it(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "new" / ".lock", "runs/a"):
        raise KeyboardInterrupt
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


def test_a_killed_holder_does_not_block(tmp_path):
    path = tmp_path / ".lock"
    killed("with locked(Path(sys.argv[1]), ''): die()", path)
    assert path.exists()
    with locked(path, "runs/a"):
        assert f"process {os.getpid()} " in path.read_text()
    assert os.listdir(tmp_path) == []


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
    """Each takes the lock two hundred times."""
    marks = tmp_path / "marks"
    marks.mkdir()
    children = [start(RACE, tmp_path / ".lock", marks, stdin=-1) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum(map(int, said)) > 0, "they never met, so nothing was tested"
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


def test_a_file_system_without_locks_gets_a_warning(tmp_path, no_locks):
    """Users there have no choice of file system; an error would not help them."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for number in range(3):
            with locked(tmp_path / f".{number}.lock", f"update {number}") as is_locked:
                assert not is_locked
    (warning,) = warned  # once, though there are several locks
    assert str(tmp_path) in str(warning.message) and "has no locks" in str(warning.message)
    assert os.listdir(tmp_path) == []


def test_a_read_only_disk_is_an_error_that_names_the_folder(tmp_path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ValueError, match=r"^data/a: .*Read-only.*; give"):
        with locked(tmp_path / ".a.lock", "data/a"):
            pytest.fail("it must be refused")


def test_another_failure_of_the_system_is_an_error(tmp_path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output"), locked(tmp_path / "new" / ".lock", "it"):
        pytest.fail("it must be refused")


@pytest.mark.parametrize("place", ["file", "file/in/it"])
def test_a_file_instead_of_a_folder_is_an_error(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"^runs/a: is a file, or in one; give a folder"):
        with locked(tmp_path / place / ".lock", "runs/a"):
            pytest.fail("it must be refused")
