import os
import threading

import pytest

from zipflm.language.files import check_destination, destination


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "out.txt"
    with pytest.raises(RuntimeError), destination(str(path)) as file:
        file.write("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with destination(str(path)) as file:
        file.write("whole\n")
        assert not path.exists()
    assert path.read_bytes() == b"whole\n"


def test_a_file_that_was_there_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), destination(str(path)) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", [None, "-"])
def test_standard_output_is_the_other_place(name, capsys):
    with destination(name) as file:
        file.write("text\n")
    assert capsys.readouterr().out == "text\n"


def test_a_link_keeps_pointing_where_it_points(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there.txt")
    with destination(str(tmp_path / "link")) as file:
        file.write("text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there.txt").read_text() == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with destination(str(pipe)) as file:
        file.write("text")
    reader.join(20)
    assert read == ["text"] and pipe.is_fifo()


def test_impossible_places_are_refused_before_any_work(tmp_path):
    for name, message in [
        (str(tmp_path), "--out .*: a folder"),
        (str(tmp_path / "no" / "out.txt"), "there is no folder .*no; make it first"),
        (str(tmp_path / "out.txt.gz"), "uncompressed; leave out .gz"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_destination("--out", name)
    for name in (None, "-", "/dev/null", str(tmp_path / "out.txt")):
        check_destination("--out", name)
