"""The log: what is appended is read, what was cut short is left out, damage has a line number."""

import math

import pytest
from studies.study_runs import report, validation

from zipflm.runs.folder import append_line, read_lines, trim

LINES = [report(1, 1.0, 5.0), report(2, 2.0, 4.5), validation(2, 2.0, 80.0), report(3, 3.0, 4.0)]


@pytest.fixture
def path(tmp_path):
    for line in LINES:
        append_line(tmp_path / "log.jsonl", line)
    return tmp_path / "log.jsonl"


def test_lines_come_back_as_they_were(path):
    assert read_lines(path) == LINES
    assert read_lines(path.with_name("absent")) == []


def test_a_line_that_is_being_written_is_left_out(path):
    with path.open("ab") as file:
        file.write(b'{"kind": "Report", "upd')
    assert read_lines(path) == LINES


def test_what_came_after_an_update_is_dropped(path):
    with path.open("ab") as file:
        file.write(b'{"kind"')
    trim(path, 2)
    assert read_lines(path) == LINES[:3]


@pytest.mark.parametrize("line", [b"[]", b"\xff\xfe", b'{"kind": "Report"}'])
def test_a_damaged_line_is_named_by_its_number(path, line):
    content = path.read_bytes().split(b"\n")
    content[1] = line
    path.write_bytes(b"\n".join(content))
    with pytest.raises(ValueError, match=r"log.jsonl: line 2: damaged or of another release"):
        read_lines(path)


def test_what_is_not_finite_is_null(tmp_path):
    append_line(tmp_path / "log", report(1, 1.0, math.inf))
    (line,) = read_lines(tmp_path / "log")
    assert line.loss is None and line.perplexity is None
