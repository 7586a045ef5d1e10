"""Files of the report."""

from dataclasses import replace

import numpy as np
import pytest
from studies import example_study as example

from zipflm.studies.report import require_report_folder, write_report


def test_writes_all_files(tmp_path, monkeypatch):
    monkeypatch.undo()  # draw figures
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "ADP-T"))]
    page = write_report(example.study_of(*members), tmp_path / "study")
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
    write_report(study, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "no interval" in text
    pairs = [line for line in text.splitlines() if "| ADP-T against SM |" in line]
    assert pairs and all(line.endswith("| no interval | not significant |") for line in pairs)


@pytest.mark.parametrize("name", ["table.csv", "table.json", "report.md"])
def test_replaces_only_files_of_reports(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"out=.*: {name} is not from an earlier report; choose"):
        require_report_folder(tmp_path)
    write_report(example.study_of(example.member("SM")), tmp_path)
    require_report_folder(tmp_path)


def test_report_of_failures_only(tmp_path):
    study = example.study_of(example.member("SM", problem="diverged"))
    page = write_report(study, tmp_path).read_text()
    assert "diverged" in page and "Unfinished: 0 of 1 models done" in page
    assert "nan" not in (tmp_path / "table.csv").read_text()
