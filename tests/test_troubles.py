import errno
import os

import pytest

import zipflm.cli
from zipflm.messages import describe_os_error

LONG = "x" * 300


@pytest.mark.parametrize(
    "number",
    [errno.EACCES, errno.ENOSPC, errno.ENAMETOOLONG, errno.ENOENT, errno.EISDIR, errno.ENOTDIR],
)
def test_os_error_has_path_reason_and_remedy(number):
    message = describe_os_error(OSError(number, os.strerror(number), "some/file"))
    assert message.startswith("some/file: ") and message.endswith(f"({os.strerror(number)})")
    assert ";" in message and "Errno" not in message


def test_rename_error_names_the_target():
    error = OSError(errno.EACCES, "Permission denied", ".unfinished-x", None, "x")
    assert describe_os_error(error).startswith("x: ")


def test_other_errors_keep_their_message():
    assert describe_os_error(FileNotFoundError("a.txt: no such file")) == "a.txt: no such file"
    assert describe_os_error(OSError(errno.ENOTCONN, "Not connected", "x")) == "x: Not connected"
    assert describe_os_error(OSError(errno.ENOSPC, "No space left on device")).startswith(
        "the disk is full"
    )


def main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        zipflm.cli.main()
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.count("\n") == 1, message
    assert "Errno" not in message and "Traceback" not in message
    return message


@pytest.fixture
def places(word_data, imported_run, tmp_path):
    (tmp_path / "file").write_text("a b c\n" * 9)
    (tmp_path / "folder").mkdir()
    return {"data": word_data.path, "run": imported_run, "tmp": tmp_path}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("prepare {tmp}/file --out {tmp}/LONG", "shorter"),
        ("prepare {tmp}/folder --out {tmp}/new", "is a folder; pass its files"),
        ("train tiny/ADP-T --data {data} --out {tmp}/file/x", "file"),
        ("train tiny/ADP-T --data {tmp}/none --out {tmp}/new", "none"),
        ("train tiny/ADP-T @{tmp}/none --data {data} --out {tmp}/new", "no such file or folder"),
        ("compare --data {data} --preset tiny --factorizations SM --out {tmp}/file", "file"),
        ("evaluate {run} --text {tmp}/folder", "folder"),
        ("score {run} {tmp}/LONG", "LONG"),
        ("rescore {run} {tmp}/none --format tsv", "no such file"),
        ("report {tmp}/none --curves x.png", "none"),
        ("info --data {tmp}/folder", "folder"),
        ("import {tmp}/none {tmp}/new --dict {tmp}/file", "no such file or folder"),
    ],
)
def test_commands_name_unusable_paths(command, expected, places, monkeypatch, capsys):
    arguments = [part.format(**places).replace("LONG", LONG) for part in command.split()]
    message = main(monkeypatch, capsys, *arguments)
    assert expected.replace("LONG", LONG[:100]) in message


def refusing(number, name):
    """Make `open` and `os.open` fail for one file; permissions would not stop root."""

    def wrapped(plain):
        def call(path, *rest, **options):
            if not isinstance(path, int) and os.path.basename(os.fspath(path)).endswith(name):
                raise OSError(number, os.strerror(number), os.fspath(path))
            return plain(path, *rest, **options)

        return call

    return wrapped


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("prepare {tmp}/file --out {tmp}/new --processes 1", "file"),
        ("train tiny/ADP-T --data {data} --out {tmp}/new training.max_updates=1", ".lock"),
        ("score {run} {tmp}/file", "file"),
    ],
)
def test_permission_error_has_a_remedy(command, name, places, monkeypatch, capsys):
    number = errno.EACCES
    arguments = [part.format(**places) for part in command.split()]
    wrapped = refusing(number, name)
    monkeypatch.setattr("builtins.open", wrapped(open))
    monkeypatch.setattr("os.open", wrapped(os.open))
    message = main(monkeypatch, capsys, *arguments)
    assert os.strerror(number) in message and ";" in message
    assert str(places["tmp"]) in message
