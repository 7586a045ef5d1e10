"""What a file system refuses is said in words, with a remedy, by every command."""

import errno
import os

import pytest

import zipflm.cli
from zipflm.messages import in_words

LONG = "x" * 300


@pytest.mark.parametrize(
    "number",
    [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG, errno.ENOENT, errno.EISDIR]
    + [errno.ENOTDIR, errno.EIO, errno.EMFILE],
)
def test_an_error_has_the_name_the_reason_and_a_remedy(number):
    said = in_words(OSError(number, os.strerror(number), "some/file"))
    assert said.startswith("some/file: ") and said.endswith(f"({os.strerror(number)})")
    assert ";" in said and "Errno" not in said


def test_of_a_rename_the_name_that_was_asked_for_is_said():
    said = in_words(OSError(errno.EACCES, "Permission denied", ".unfinished-x", None, "x"))
    assert said.startswith("x: ")


def test_what_has_words_already_and_what_nobody_foresaw_stay_as_they_are():
    assert in_words(FileNotFoundError("a.txt: no such file")) == "a.txt: no such file"
    assert in_words(OSError(errno.ENOTCONN, "Not connected", "x")) == "x: Not connected"
    assert in_words(OSError(errno.ENOSPC, "No space left on device")).startswith("the disk is full")


def main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        zipflm.cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1, said
    assert "Errno" not in said and "Traceback" not in said
    return said


@pytest.fixture
def places(word_data, imported_run, tmp_path):
    (tmp_path / "file").write_text("a b c\n" * 9)
    (tmp_path / "folder").mkdir()
    return {"data": word_data.path, "run": imported_run, "tmp": tmp_path}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("prepare {tmp}/file --out {tmp}/LONG", "shorter"),
        ("prepare {tmp}/folder --out {tmp}/new", "a folder; name its files"),
        ("train tiny/ADP-T --data {data} --out {tmp}/file/x", "file"),
        ("train tiny/ADP-T --data {tmp}/none --out {tmp}/new", "none"),
        ("train tiny/ADP-T @{tmp}/none --data {data} --out {tmp}/new", "there is no such file"),
        ("compare --data {data} --preset tiny --factorizations SM --out {tmp}/file", "file"),
        ("evaluate {run} --text {tmp}/folder", "folder"),
        ("score {run} {tmp}/LONG", "LONG"),
        ("rescore {run} {tmp}/none --format tsv", "no such file"),
        ("report {tmp}/none --curves x.png", "none"),
        ("info --data {tmp}/folder", "folder"),
        ("import {tmp}/none {tmp}/new --dict {tmp}/file", "there is no such file"),
    ],
)
def test_every_command_says_what_it_cannot_read_or_write(
    command, said, places, monkeypatch, capsys
):
    arguments = [part.format(**places).replace("LONG", LONG) for part in command.split()]
    message = main(monkeypatch, capsys, *arguments)
    assert said.replace("LONG", LONG[:100]) in message


def refusing(number, name):
    """`open` and `os.open` on a disk that refuses one file, which root would be allowed to use."""

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
def test_a_disk_that_refuses_is_named_with_a_remedy(command, name, places, monkeypatch, capsys):
    number = errno.EACCES
    arguments = [part.format(**places) for part in command.split()]
    wrapped = refusing(number, name)
    monkeypatch.setattr("builtins.open", wrapped(open))
    monkeypatch.setattr("os.open", wrapped(os.open))
    message = main(monkeypatch, capsys, *arguments)
    assert os.strerror(number) in message and ";" in message
    assert str(places["tmp"]) in message
