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
from pathlib import Path

import pytest
from child_code import killed, start, waiting

from zipflm import storage
from zipflm.storage import (
    InUse,
    atomic_write,
    atomic_write_text,
    locked,
    new_folder,
    read_checksums,
    refuse_existing,
    report_full_disk,
    require_unchanged,
    seal,
    sole_writer,
    verify_once,
)


def test_atomic_write_text(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("one\n", "two\n\u00e9\r\n"):
        atomic_write_text(path, text)
        assert path.read_bytes() == text.encode()
        assert os.listdir(tmp_path) == ["file.txt"]


AT = {
    "writing": """
        with atomic_write(Path(sys.argv[1])) as unfinished:
            unfinished.write_text("half of the n")
            die()
        """,
    "flushing": "os.fsync = die; atomic_write_text(Path(sys.argv[1]), 'new')",
    "renaming": "os.replace = die; atomic_write_text(Path(sys.argv[1]), 'new')",
}


@pytest.mark.parametrize("moment", AT)
def test_killed_writer_leaves_the_old_content(tmp_path, moment):
    path = tmp_path / "file.txt"
    atomic_write_text(path, "old")
    killed(AT[moment], path)
    assert path.read_text() == "old"
    # The next write succeeds and removes the leftovers.
    assert len(os.listdir(tmp_path)) == 2
    atomic_write_text(path, "new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file.txt"]


def test_content_is_flushed_before_the_rename(tmp_path, monkeypatch):
    # Otherwise a power cut could leave an empty file with the new name.
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
    atomic_write_text(tmp_path / "file.txt", "content")
    unfinished, renamed, folder = events
    assert os.path.dirname(unfinished) == str(tmp_path.resolve()) == folder
    assert renamed == "renamed"


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    atomic_write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as unfinished:
        assert unfinished.suffix == ".txt"  # some libraries choose the format by it
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_full_disk_error_names_the_outermost_path(tmp_path):
    with pytest.raises(OSError, match="study: No space left on device while writing it; outer$"):
        with report_full_disk(tmp_path / "study", "outer"):
            with report_full_disk(tmp_path / "study" / "inner", "inner"):
                raise OSError(errno.ENOSPC, "No space left on device")


HOLD = "with locked(Path(sys.argv[1]), 'the folder'): say('ready'); time.sleep(60)"


def refused(path):
    """Return the error for a second process."""
    with pytest.raises(InUse) as error, locked(path, "runs/a"):
        pytest.fail("not refused")
    return str(error.value)


def test_lock_is_released_and_removed(tmp_path):
    path = tmp_path / ".lock"
    for _ in range(2):
        with locked(path, "runs/a") as is_locked:
            assert is_locked and path.exists()
            refused(path)
        assert os.listdir(tmp_path) == []


@pytest.mark.skipif(platform.system() != "Linux", reason="needs /proc")
def test_reports_a_lock_file_that_cannot_be_created():
    with pytest.raises(ValueError, match="runs/a: not writable .*; choose another folder"):
        with locked(Path("/proc/.a.lock"), "runs/a"):
            pytest.fail("not refused")


def test_lock_error_names_the_holder(tmp_path):
    path = tmp_path / ".lock"
    with waiting(HOLD, path) as holder:
        expected = (
            rf"runs/a: in use by process {holder.pid} on {re.escape(platform.node())}"
            r", since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S*; wait until it finishes, or choose "
            "another folder"
        )
        assert re.fullmatch(expected, refused(path))


def test_lock_of_a_killed_process_is_free(tmp_path):
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
            # Fails if another process is inside.
            os.close(os.open(marks / "inside", os.O_CREAT | os.O_EXCL))
            time.sleep(0.001)  # the other process tries, even on a single core
            os.unlink(marks / "inside")
            won += 1
    except InUse:
        lost += 1
say(lost)
"""


def test_racing_processes_exclude_each_other(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    children = [start(RACE, tmp_path / ".lock", marks, stdin=-1) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum(map(int, outputs)) > 0, "the processes never competed, so nothing was tested"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_forked_child_does_not_own_the_lock(tmp_path):
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


def test_warns_about_file_systems_without_locks(tmp_path, no_locks):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for number in range(3):
            with locked(tmp_path / f".{number}.lock", f"update {number}") as is_locked:
                assert not is_locked
    (warning,) = warned  # once for several locks
    assert str(tmp_path) in str(warning.message) and "has no locks" in str(warning.message)
    assert os.listdir(tmp_path) == []


def test_read_only_disk_error_names_the_folder(tmp_path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ValueError, match=r"^data/a: not writable \(Read-only file system\); "):
        with locked(tmp_path / ".a.lock", "data/a"):
            pytest.fail("not refused")


def test_rejects_file_instead_of_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"^runs/a: is a file or inside one; choose a folder"):
        with locked(tmp_path / "file" / "in" / ".lock", "runs/a"):
            pytest.fail("not refused")


def test_new_folder_appears_on_exit(tmp_path):
    out = tmp_path / "new" / "out"
    with new_folder(out) as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file").write_text("x")
        assert not out.exists()
        assert unfinished.name.startswith(".")
    assert (out / "inner" / "file").read_text() == "x"
    assert os.listdir(out.parent) == ["out"]


def test_failed_folder_is_removed_with_its_parents(tmp_path):
    (tmp_path / "there").mkdir()
    out = tmp_path / "there" / "a" / "b" / "out"
    with pytest.raises(KeyboardInterrupt), new_folder(out) as unfinished:
        (unfinished / "file").write_text("x")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["there"] and os.listdir(tmp_path / "there") == []


def test_next_process_cleans_up_after_a_killed_one(tmp_path):
    code = """
        with new_folder(sys.argv[1]) as unfinished:
            (unfinished / "file").write_text("x")
            die()
        """
    killed(code, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(os.listdir(tmp_path)) == 2  # the unfinished folder and its lock
    with new_folder(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == ["out"]


def test_existing_paths_are_not_touched(tmp_path):
    (tmp_path / "file").touch()
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for out in (tmp_path / "file", full):
        with pytest.raises(FileExistsError, match="already exists; choose another folder"):
            refuse_existing(out)
        with pytest.raises(FileExistsError), new_folder(out):
            pytest.fail("not refused")
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


@pytest.mark.parametrize("kind", ["empty folder", "link to empty folder", "broken link"])
def test_new_folder_at_free_paths(tmp_path, kind):
    out, place = tmp_path / "out", tmp_path / "elsewhere" / "place"
    place.parent.mkdir()
    if kind == "empty folder":
        out.mkdir()
    else:
        out.symlink_to(place)
        if kind == "link to empty folder":
            place.mkdir()
    with new_folder(out) as unfinished:
        (unfinished / "file").write_text("x")
    assert (out / "file").read_text() == "x"
    assert out.is_symlink() == (kind != "empty folder")
    assert os.listdir(place.parent) == (["place"] if out.is_symlink() else [])


def test_refuses_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (".", tmp_path, tmp_path / ".." / tmp_path.name):
        with pytest.raises(FileExistsError, match="is the current folder; choose another"):
            refuse_existing(out)


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / "file").touch()
            (unfinished / "file").chmod(0o600)  # as safetensors does
    finally:
        assert os.umask(before) == 0o027
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "out" / "file").stat().st_mode) == 0o640


def test_full_disk_error_has_path_and_remedy(tmp_path):
    # A file size limit fails like a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as error, new_folder(tmp_path / "new" / "out") as unfinished:
            (unfinished / "file").write_bytes(b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(error.value) == (
        f"{tmp_path}/new/out: File too large while writing it; nothing was kept; free some space "
        "or choose another folder"
    )
    assert error.value.errno == errno.EFBIG and os.listdir(tmp_path) == []


MAKE = """
with new_folder(sys.argv[1]) as unfinished:
    (unfinished / "file").write_text("of the first")
    say("ready")
    time.sleep(60)
"""


def test_second_process_cannot_make_the_same_folder(tmp_path):
    out = tmp_path / "new" / "out"
    with waiting(MAKE, out) as first:
        before = sorted(path.name for path in out.parent.iterdir())
        with pytest.raises(InUse, match=rf"^{out}: in use by process {first.pid} on "):
            with new_folder(out):
                pytest.fail("not refused")
        assert sorted(path.name for path in out.parent.iterdir()) == before
        with new_folder(out.with_name("other")):
            pass


def test_folder_made_before_the_lock_is_not_overwritten(tmp_path, monkeypatch):
    # Another process renames its folder and releases the lock just before we take it.
    out = tmp_path / "out"
    take = storage.locked

    def locked_late(path, what):
        out.mkdir()
        (out / "file").write_text("of the first")
        return take(path, what)

    monkeypatch.setattr(storage, "locked", locked_late)
    with pytest.raises(FileExistsError), new_folder(out):
        pytest.fail("not refused")
    assert (out / "file").read_text() == "of the first" and os.listdir(tmp_path) == ["out"]


def test_without_locks_nothing_is_removed(tmp_path, no_locks):
    (tmp_path / ".out.unfinished-12345678").mkdir()
    with pytest.warns(RuntimeWarning, match="has no locks"), new_folder(tmp_path / "out"):
        pass
    assert set(os.listdir(tmp_path)) == {".out.unfinished-12345678", "out"}
    (tmp_path / "out" / ".unfinished-file").touch()
    with pytest.warns(RuntimeWarning, match="has no locks"), sole_writer(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path / "out") == [".unfinished-file"]


def test_sole_writer_excludes_others(tmp_path):
    run = tmp_path / "run"
    code = "with sole_writer(Path(sys.argv[1])): say('ready'); time.sleep(60)"
    with waiting(code, run) as first:
        with pytest.raises(InUse, match=rf"^{run}: in use by process {first.pid} on "):
            with sole_writer(run):
                pytest.fail("not refused")
        (tmp_path / "link").symlink_to(run)
        with pytest.raises(InUse), sole_writer(tmp_path / "link"):
            pytest.fail("not refused")
    with sole_writer(run):
        pass


def test_sole_writer_removes_leftovers(tmp_path):
    run = tmp_path / "run"
    code = """
        with sole_writer(Path(sys.argv[1])), atomic_write(Path(sys.argv[1]) / "file") as half:
            half.write_text("half")
            die()
        """
    killed(code, run)
    assert sorted(os.listdir(run)) == [".lock", ".unfinished-file"]
    (run / "whole").touch()
    inner = run / "another-run" / ".unfinished-file"  # may belong to a running process
    inner.parent.mkdir()
    inner.touch()
    with sole_writer(run):
        assert sorted(os.listdir(run)) == [".lock", "another-run", "whole"]
    assert inner.exists()


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
    """Names of the files that were hashed."""
    names, file_hash = [], storage.file_hash

    def seen(path):
        names.append(path.name)
        return file_hash(path)

    monkeypatch.setattr(storage, "file_hash", seen)
    return names


def test_seal_uses_known_checksums(folder, hashed):
    (folder / "inner").mkdir()
    (folder / ".verified.json").touch()
    seal(folder, {NAME: "known"})
    assert hashed == ["data.json"]
    sums = read_checksums(folder, ["data.json", NAME])
    assert sums.keys() == {"data.json", NAME} and sums[NAME] == "known"


def test_missing_checksum_is_named(folder):
    with pytest.raises(ValueError, match=r"checksums.json: has no entry for valid.tokens; "):
        read_checksums(folder, [NAME, "valid.tokens"])


def test_require_unchanged(folder):
    sums = read_checksums(folder, [NAME])
    require_unchanged(folder, NAME, sums)
    flip(folder / NAME)
    with pytest.raises(ValueError, match=f"{folder / NAME}: damaged; it does not match its check"):
        require_unchanged(folder, NAME, sums)
    (folder / NAME).unlink()
    with pytest.raises(ValueError, match=f"{folder / NAME}: missing, but listed in checksums.json"):
        require_unchanged(folder, NAME, sums)


def verify(folder):
    verify_once(folder, NAME, read_checksums(folder, [NAME]))


def test_unchanged_file_is_hashed_once(folder, hashed):
    for _ in range(3):
        verify(folder)
    assert hashed == [NAME]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_detects_changes_with_same_time_and_size(folder, is_replaced):
    verify(folder)
    path, before = folder / NAME, (folder / NAME).stat()
    time.sleep(0.02)  # more than the resolution of the file system's clock
    if is_replaced:
        path.rename(folder / "aside")
        path.write_bytes((folder / "aside").read_bytes())
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            verify(folder)


def test_damaged_record_is_ignored(folder, hashed):
    verify(folder)
    (folder / ".verified.json").write_bytes(b"[]")
    verify(folder)
    assert hashed == [NAME, NAME]
    assert json.loads((folder / ".verified.json").read_text()).keys() == {NAME}


def test_read_only_folder_is_hashed_again(folder, hashed, monkeypatch):
    def fail(path, text):
        raise PermissionError("read-only")

    monkeypatch.setattr(storage, "atomic_write_text", fail)
    verify(folder)
    verify(folder)
    assert hashed == [NAME, NAME]
