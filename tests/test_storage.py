"""Files and folders are there whole or not at all, one process at a time writes into a folder, and
files are compared with their checksums."""

import errno
import fcntl
import json
import os
import platform
import re
import resource
import signal
import stat
import time
import warnings
from contextlib import suppress

import pytest
from child_code import killed, start, waiting

from zipflm import storage
from zipflm.storage import (
    DiskFull,
    InUse,
    Verified,
    clear_abandoned,
    locked,
    naming_full_disk,
    new_folder,
    read_checksums,
    refuse_existing,
    require_unchanged,
    seal,
    sole_writer,
    write_whole,
    written_whole,
)

# --- Files. ---


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


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    write_whole(path, "old")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as unfinished:
        assert unfinished.suffix == ".txt"  # by which some libraries choose a format
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_of_several_names_for_a_full_disk_the_outermost_is_said(tmp_path):
    with pytest.raises(DiskFull, match="study: No space left on device while writing it; go on$"):
        with naming_full_disk(tmp_path / "study", "go on"):
            with naming_full_disk(tmp_path / "study" / "inner", "never mind"):
                raise OSError(errno.ENOSPC, "No space left on device")


# --- Locks. ---

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


def test_the_second_process_is_told_who_holds_it_and_since_when(tmp_path):
    path = tmp_path / ".lock"
    with waiting(HOLD, path) as holder:
        expected = (
            rf"runs/a: in use by process {holder.pid} on {re.escape(platform.node())}"
            r", since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S*; wait until it has ended, or choose "
            "another folder"
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


def test_a_file_instead_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"^runs/a: is a file, or in one; give a folder"):
        with locked(tmp_path / "file" / "in" / ".lock", "runs/a"):
            pytest.fail("it must be refused")


# --- Folders. ---


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "new" / "out"
    with new_folder(out) as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").write_text("x")
        assert not out.exists()
        assert unfinished.name.startswith(".")
    assert (out / "inner" / "file").read_text() == "x"
    assert os.listdir(out.parent) == ["out"]


def test_a_folder_vanishes_on_an_error_with_the_parents_made_for_it(tmp_path):
    (tmp_path / "there").mkdir()
    out = tmp_path / "there" / "a" / "b" / "out"
    with pytest.raises(KeyboardInterrupt), new_folder(out) as unfinished:
        (unfinished / "file").write_text("x")
        raise KeyboardInterrupt
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
        with pytest.raises(FileExistsError, match="exists already; choose another folder"):
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


def test_permissions_follow_the_umask_which_stays_as_it_was(tmp_path):
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / "file").touch()
            (unfinished / "file").chmod(0o600)  # as safetensors makes its files
    finally:
        assert os.umask(before) == 0o027
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "out" / "file").stat().st_mode) == 0o640


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


def test_a_writer_that_wrote_nothing_leaves_no_folder(tmp_path):
    with suppress(ValueError), sole_writer(tmp_path / "a" / "run"):
        raise ValueError
    assert os.listdir(tmp_path) == []


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


# --- Checksums. ---

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


def test_a_damaged_memory_is_not_believed(folder, hashed, later):
    verify(folder)
    (folder / ".verified.json").write_bytes(b"[]")
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
