"""The written report: every file is there, and never over a report of another kind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import example_study as example

from zipflm.studies.report import Maker, claim, write_report


def test_all_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # figures and all
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "ADP-T"))]
    page = write_report(example.study_of(*members), tmp_path / "study", "study")
    assert page == tmp_path / "study" / "report.html"
    names = {path.name for path in (tmp_path / "study").iterdir()}
    tables = {"table.csv", "table.json", "table.tex"}
    assert names == {"report.html", "report.md", "figures"} | tables
    written = list((tmp_path / "study" / "figures").iterdir())
    figures = {path.stem for path in written}
    assert {path.suffix for path in written} == {".svg", ".png"} and len(written) == 10
    text = (tmp_path / "study" / "report.md").read_text()
    assert figures and all(f"(figures/{name}.svg)" in text for name in figures)


@pytest.mark.parametrize("others", [(), ("CNN",)])
def test_a_difference_from_two_sources_alone_has_no_interval(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    first = example.member("ADP-T")
    assert first.nll is not None
    step = np.where(np.arange(len(first.nll)) < 1300, 0.1, 2.0)
    second = replace(example.member("SM", rank=1), nll=first.nll + step)
    more = [example.member(label, seed=2, rank=9) for label in others]
    study = example.study_of(first, second, *more, dataset="wikitext-103")
    assert study.difference("SM", "ADP-T") is None and not study.is_better("ADP-T", "SM")
    write_report(study, tmp_path, "study")
    text = (tmp_path / "report.md").read_text()
    assert "too few sources" in text
    pairs = [line for line in text.splitlines() if "| ADP-T against SM |" in line]
    assert pairs and all(line.endswith("| no interval | cannot be told |") for line in pairs)


def test_a_study_of_failures_only_still_makes_a_report(tmp_path: Path) -> None:
    study = example.study_of(example.member("SM", problem="diverged"))
    page = write_report(study, tmp_path, "study").read_text()
    assert "diverged" in page and "Unfinished: 0 of 1 models" in page
    assert "nan" not in (tmp_path / "table.csv").read_text()


KINDS: dict[Maker, str] = {"study": "a study", "analysis": "an analysis of runs"}


def test_a_report_is_overwritten_by_its_own_kind_only(tmp_path: Path) -> None:
    study = example.study_of(example.member("SM"))
    for held, name in KINDS.items():
        out = tmp_path / held
        claim(out, held)
        write_report(study, out, held)
        claim(out, held)
        for maker in set(KINDS) - {held}:
            with pytest.raises(ValueError, match=f"--out .*: holds the report of {name}"):
                claim(out, maker)


def test_a_study_that_has_members_and_no_report_yet_is_one(tmp_path: Path) -> None:
    (tmp_path / "members").mkdir()
    claim(tmp_path, "study")
    with pytest.raises(ValueError, match="holds the report of a study"):
        claim(tmp_path, "analysis")


@pytest.mark.parametrize("content", ["", "[]", '{"rows": []}', "\xff"])
def test_a_table_that_does_not_say_whose_it_is_is_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "table.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="table.json: cannot be read"):
        claim(tmp_path, "study")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/inner"):
        with pytest.raises(ValueError, match="--out .*: cannot be made"):
            claim(tmp_path / place, "study")
