"""What a person sees while data is made: a bar on a terminal, silence elsewhere, a summary."""

import io
from dataclasses import replace

import pytest

from zipflm.data.folder import DataFolder
from zipflm.data.progress import progress_bar, summary


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


def test_the_summary_has_every_split_with_its_counts(word_data):
    head, train, valid = summary(word_data).splitlines()
    facts = word_data.facts
    assert head == (
        f"{word_data.path}: {facts.vocabulary.size} ids (word), hash {facts.vocabulary.hash[:16]}"
    )
    for line, name in ((train, "train"), (valid, "valid")):
        split = word_data.split(name)
        assert line.split() == [
            *(name, "1", "file", f"{split.tokens:,}", "tokens", str(split.sentences), "sentences"),
            *(str(split.types), "types", f"{100 * split.unknown / split.tokens:.2f}", "%"),
            "unknown",
        ]


def test_several_files_are_counted(word_data):
    splits = {"train": replace(word_data.split("train"), sources=("a", "b", "c"))}
    facts = replace(word_data.facts, splits=splits)
    assert "3 files" in summary(DataFolder(word_data.path, facts, word_data.vocabulary))


@pytest.mark.parametrize(("asked", "said"), [(40, False), (41, True)])
def test_fewer_merges_than_asked_for_are_said(bpe_data, asked, said):
    assert bpe_data.facts.bpe.merges == 40
    facts = replace(bpe_data.facts, options=replace(bpe_data.facts.options, bpe=asked))
    text = summary(DataFolder(bpe_data.path, facts, bpe_data.vocabulary))
    assert ("merges learned" in text) == said
    assert ("40 merges learned of 41: no other pair occurs twice" in text) == said
