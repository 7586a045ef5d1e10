"""What a person sees while data is made: a bar on a terminal, silence elsewhere, a summary."""

import io
from dataclasses import replace

import pytest

from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, doubts, prepare, progress_bar, summary


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream)
    for name, value in {"COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with progress_bar() as report:
        report("reading train", 30, 100)
        report("reading train", 20, 100)
        report("learning sub-words", 0, None)
    return stream.getvalue()


def test_a_terminal_shows_each_task_with_its_share(monkeypatch):
    said = shown(monkeypatch, Terminal())
    last = said[said.rindex("reading train") :]
    assert " 50 %" in last and "learning sub-words" in last


def test_elsewhere_nothing_is_shown(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""


@pytest.mark.parametrize(("asked", "said"), [(40, False), (41, True)])
def test_fewer_merges_than_asked_for_are_said(bpe_data, asked, said):
    assert bpe_data.facts.bpe.merges == 40
    facts = replace(bpe_data.facts, options=replace(bpe_data.facts.options, bpe=asked))
    text = summary(DataFolder(bpe_data.path, facts, bpe_data.vocabulary))
    assert ("merges learned" in text) == said
    assert ("40 merges learned of 41: no other pair occurs twice" in text) == said


def test_a_rate_is_told_in_its_unit_and_what_is_done_twice_has_two_bars(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    for name, value in {"COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with progress_bar("tokens") as report:
        for done in (5, 5, 3):
            report("scoring test", done, 10)
    last = stream.getvalue()[stream.getvalue().rindex("\x1b[2K") :]
    assert "tokens/s" in last and "100 %" in stream.getvalue() and " 30 %" in last


def folder_of(tmp_path, valid, **options):
    (tmp_path / "train.txt").write_text("a b c\n" * 20)
    (tmp_path / "valid.txt").write_text(valid)
    splits = {"train": [tmp_path / "train.txt"], "valid": [tmp_path / "valid.txt"]}
    return prepare(tmp_path / "data", splits, Options(**options))


@pytest.mark.parametrize(("strange", "is_said"), [(0, False), (5, False), (6, True)])
def test_a_held_out_text_of_unknown_words_is_doubtful(tmp_path, strange, is_said):
    """Of a hundred words and line ends."""
    line = " ".join(["a"] * (99 - strange) + ["x"] * strange)
    said = list(doubts(folder_of(tmp_path, f"{line}\n")))
    assert len(said) == is_said
    assert not is_said or said[0].startswith("6.0% of the words of the valid text are unknown")


def test_a_line_as_long_as_a_library_is_doubtful(tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.data.prepare._LONGEST_LINE", 50)
    assert list(doubts(folder_of(tmp_path, "a " * 49))) == []
    (said,) = doubts(folder_of(_new(tmp_path), "a " * 50))
    assert said.startswith("the valid text has a line of 51 words") and "line ends missing" in said


def _new(folder):
    (folder / "new").mkdir()
    return folder / "new"
