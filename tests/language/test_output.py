import os
import threading

import pytest

from zipflm.language.files import check_destination, destination


def test_files_appear_when_complete(tmp_path):
    path = tmp_path / "out.txt"
    with pytest.raises(RuntimeError), destination(str(path)) as file:
        file.write("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with destination(str(path)) as file:
        file.write("whole\n")
        assert not path.exists()
    assert path.read_bytes() == b"whole\n"


def test_keeps_the_old_file_on_failure(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), destination(str(path)) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", [None, "-"])
def test_writes_to_stdout(name, capsys):
    with destination(name) as file:
        file.write("text\n")
    assert capsys.readouterr().out == "text\n"


def test_escapes_control_characters_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with destination(None) as file:
        file.write("1\t\x1b[2Jba\n")
    assert capsys.readouterr().out == "1\t\\x1b[2Jba\n"


def test_follows_symbolic_links(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there.txt")
    with destination(str(tmp_path / "link")) as file:
        file.write("text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there.txt").read_text() == "text"


def test_writes_to_pipes(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with destination(str(pipe)) as file:
        file.write("text")
    reader.join(20)
    assert read == ["text"] and pipe.is_fifo()


def test_rejects_impossible_destinations(tmp_path):
    for name, message in [
        (str(tmp_path), "--out .*: a folder"),
        (str(tmp_path / "no" / "out.txt"), "no folder .*no; create it first"),
        (str(tmp_path / "out.txt.gz"), "uncompressed; leave out .gz"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_destination("--out", name)
    for name in (None, "-", "/dev/null", str(tmp_path / "out.txt")):
        check_destination("--out", name, ["-", "/dev/null", "absent"])


def test_rejects_inputs_as_destinations(tmp_path):
    (tmp_path / "in.txt").touch()
    (tmp_path / "link").symlink_to("in.txt")
    for name, file in [("in.txt", "in.txt"), ("link", "in.txt"), ("in.txt", "link")]:
        with pytest.raises(ValueError, match=f"--out .*{name}: would overwrite an input"):
            check_destination("--out", str(tmp_path / name), ["-", str(tmp_path / file)])
