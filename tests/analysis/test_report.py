"""The written report: every file, the same in Markdown as elsewhere, never over another's."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.findings import findings
from zipflm.analysis.paper_findings import paper_findings
from zipflm.analysis.report import Maker, _code, claim, markdown, write_report


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipflm.analysis.report.save_figures", lambda study, folder: [])


def test_all_files_are_written(tmp_path: Path) -> None:
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "ADP-T"))]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    page = write_report(study, tmp_path / "study", "study")
    assert page == tmp_path / "study" / "report.html"
    names = {path.name for path in (tmp_path / "study").iterdir()}
    tables = {"table.csv", "table.json", "table.tex"}
    assert names == {"report.html", "report.md", "figures"} | tables
    figures = {path.stem for path in (tmp_path / "study" / "figures").iterdir()}
    text = (tmp_path / "study" / "report.md").read_text()
    assert figures and all(f"(figures/{name}.svg)" in text for name in figures)


@pytest.mark.parametrize("others", [(), ("CNN",)])
def test_a_difference_from_two_sources_alone_has_no_interval(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Every file is written, and no model is called better on such a difference."""
    first = example.member("ADP-T")
    assert first.nll is not None
    step = np.where(np.arange(len(first.nll)) < 1300, 0.1, 2.0)
    second = replace(example.member("SM", rank=1), nll=first.nll + step)
    members = [first, second, *(example.member(label, seed=2, rank=9) for label in others)]
    study = build(members, example.text(), title="t", dataset="wikitext-103", facts={})
    assert study.difference("SM", "ADP-T") is None and not study.is_better("ADP-T", "SM")
    assert any("too few sources" in sentence for sentence in findings(study))
    tied = [f for f in paper_findings(study) if f.models == "ADP-T against SM"]
    assert tied and all(f.verdict == "cannot be told" for f in tied)
    write_report(study, tmp_path, "study")
    assert "no interval" in (tmp_path / "report.md").read_text()


def test_a_member_without_a_result_has_its_reason() -> None:
    lines = markdown(example.study(broken="CNN")).splitlines()
    (row,) = (line for line in lines if line.startswith("| CNN | -"))
    assert row.endswith("| diverged: <loss> nan |")


def test_every_number_has_its_protocol() -> None:
    text = markdown(example.study(seeds=2))
    assert (
        text.count("| SM-T | 2 | test | update-00000100 | word | complete | 64 | 0 | 3,000 |") == 1
    )
    assert text.count("| SM-T | 1 | valid |") == 1


def test_the_papers_figures_are_labelled_as_such() -> None:
    assert "the paper's test" in markdown(example.study(dataset="wikitext-103"))
    assert "the paper's test" not in markdown(example.study(dataset="tiny"))


def test_a_study_of_failures_only_still_makes_a_report(tmp_path: Path, no_figures: None) -> None:
    members = [example.member("SM", problem="diverged")]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    page = write_report(study, tmp_path, "study").read_text()
    assert "diverged" in page and "nan" not in (tmp_path / "table.csv").read_text()


@pytest.mark.parametrize(
    ("word", "code"), [("a", "`a`"), ("`", "`` ` ``"), ("a``b", "``` a``b ```")]
)
def test_words_of_backticks_stay_words(word: str, code: str) -> None:
    assert _code(word) == code


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    members = [example.member("SM", problem="a | b\nc \\ d")]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    assert "| a \\| b c \\\\ d |" in markdown(study)


KINDS: dict[Maker, str] = {
    "study": "a study",
    "ablation": "an ablation",
    "analysis": "an analysis of runs",
}


@pytest.mark.parametrize("held", KINDS)
@pytest.mark.parametrize("maker", KINDS)
def test_a_report_is_overwritten_by_its_own_kind_only(
    tmp_path: Path, no_figures: None, held: Maker, maker: Maker
) -> None:
    claim(tmp_path, held)
    write_report(example.study(), tmp_path, held)
    if held == maker:
        claim(tmp_path, maker)
        return
    with pytest.raises(ValueError) as error:
        claim(tmp_path, maker)
    assert str(error.value) == (
        f"--out {tmp_path}: holds the report of {KINDS[held]}, which would be overwritten; choose "
        "another --out"
    )


def test_a_study_that_has_members_and_no_report_yet_is_one(tmp_path: Path) -> None:
    (tmp_path / "members").mkdir()
    claim(tmp_path, "study")
    with pytest.raises(ValueError, match="holds the report of a study"):
        claim(tmp_path, "analysis")


def test_a_folder_that_is_free_is_made_for_anybody(tmp_path: Path) -> None:
    for maker in KINDS:
        claim(tmp_path / maker / "new", maker)
        assert os.listdir(tmp_path / maker / "new") == []
        (tmp_path / maker / "new" / "notes.txt").touch()
        claim(tmp_path / maker / "new", maker)


@pytest.mark.parametrize("content", ["", "[]", "{", "\xff"])
@pytest.mark.parametrize("maker", KINDS)
def test_a_table_that_cannot_be_read_may_be_anybodys(
    tmp_path: Path, content: str, maker: Maker
) -> None:
    (tmp_path / "table.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="table.json: cannot be read, so whose report it is"):
        claim(tmp_path, maker)


def test_a_table_that_does_not_say_whose_it_is_may_be_anybodys(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps({"rows": []}))
    for maker in KINDS:
        with pytest.raises(ValueError, match="whose report it is cannot be told"):
            claim(tmp_path, maker)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/inner"):
        with pytest.raises(ValueError, match="cannot be made .*; give a folder that can"):
            claim(tmp_path / place, "study")
