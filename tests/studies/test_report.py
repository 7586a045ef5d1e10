"""Files of the report, and folders that must not be overwritten."""

from dataclasses import replace

import numpy as np
import pytest
from studies import example_study as example

from zipflm.studies.report import claim_folder, write_report


def test_writes_all_files(tmp_path, monkeypatch):
    monkeypatch.undo()  # draw figures
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
def test_reports_differences_without_interval(tmp_path, others):
    first = example.member("ADP-T")
    step = np.where(np.arange(len(first.nll)) < 1300, 0.1, 2.0)
    second = replace(example.member("SM", rank=1), nll=first.nll + step)
    more = [example.member(label, seed=2, rank=9) for label in others]
    study = example.study_of(first, second, *more, dataset="wikitext-103")
    assert study.difference("SM", "ADP-T") is None and not study.is_better("ADP-T", "SM")
    write_report(study, tmp_path, "study")
    text = (tmp_path / "report.md").read_text()
    assert "no interval" in text
    pairs = [line for line in text.splitlines() if "| ADP-T against SM |" in line]
    assert pairs and all(line.endswith("| no interval | not significant |") for line in pairs)


def test_report_of_failures_only(tmp_path):
    study = example.study_of(example.member("SM", problem="diverged"))
    page = write_report(study, tmp_path, "study").read_text()
    assert "diverged" in page and "Unfinished: 0 of 1 models" in page
    assert "nan" not in (tmp_path / "table.csv").read_text()


KINDS = {"study": "a study", "analysis": "an analysis of runs"}


def test_report_is_overwritten_only_by_its_own_kind(tmp_path):
    study = example.study_of(example.member("SM"))
    for held, name in KINDS.items():
        out = tmp_path / held
        claim_folder(out, held)
        write_report(study, out, held)
        claim_folder(out, held)
        for maker in set(KINDS) - {held}:
            with pytest.raises(ValueError, match=f"already contains the report of {name}"):
                claim_folder(out, maker)


def test_study_without_report_is_protected(tmp_path):
    (tmp_path / "members").mkdir()
    claim_folder(tmp_path, "study")
    with pytest.raises(ValueError, match="already contains the report of a study"):
        claim_folder(tmp_path, "analysis")


@pytest.mark.parametrize("content", ["", "[]", '{"rows": []}', "\xff"])
def test_unreadable_table_is_protected(tmp_path, content):
    (tmp_path / "table.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="table.json: not a readable report"):
        claim_folder(tmp_path, "study")


def test_rejects_folders_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/inner"):
        with pytest.raises(ValueError, match="out=.*: cannot create"):
            claim_folder(tmp_path / place, "study")
