"""The written report: every file, the same numbers in all, nothing from outside left unescaped."""

import csv
import json
import re
from pathlib import Path

import pytest
from analysis import example_study as example

from zipflm.analysis.page import render
from zipflm.analysis.report import _code, markdown, write_report
from zipflm.analysis.tables import duration, memory, millions, number, to_csv, to_json


def test_all_files_are_written(tmp_path: Path) -> None:
    page = write_report(example.study(), tmp_path / "study", "study")
    assert page == tmp_path / "study" / "report.html"
    names = {path.name for path in (tmp_path / "study").iterdir()}
    assert names == {"report.html", "report.md", "table.csv", "table.json", "figures"}


def test_csv_and_json_hold_the_same_values() -> None:
    study = example.study(dataset="wikitext-103")
    lines = list(csv.DictReader(to_csv(study).splitlines()))
    rows = json.loads(json.dumps(to_json(study, "study"), allow_nan=False))["rows"]
    assert [line["model"] for line in lines] == [row["model"] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert float(line["perplexity_test"]) == row["perplexity_test"]
        assert int(line["parameters_all"]) == row["parameters_all"]
        assert float(line["the_paper's_test"]) == row["paper"]["test"]


def test_a_member_without_a_result_has_its_reason_and_no_number() -> None:
    study = example.study(broken="CNN")
    line = next(line for line in csv.DictReader(to_csv(study).splitlines()) if "CNN" in str(line))
    assert line["problem"] == "diverged: <loss> nan"
    assert line["perplexity_test"] == ""
    html = render(study)
    assert "diverged: &lt;loss&gt; nan" in html
    assert "diverged: <loss> nan" in markdown(study)


def test_every_number_has_its_protocol() -> None:
    text = markdown(example.study(seeds=2))
    assert (
        text.count("| SM-T | 2 | test | update-00000100 | word | complete | 64 | 0 | 3,000 |") == 1
    )
    assert text.count("| SM-T | 1 | valid |") == 1


def test_the_papers_figures_are_labelled_as_such() -> None:
    assert "the paper's test" in markdown(example.study(dataset="wikitext-103"))
    assert "the paper's test" not in markdown(example.study(dataset="tiny"))


def test_the_page_refers_to_nothing_outside_itself() -> None:
    html = render(example.study())
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!#)""", html)
    assert not re.search(r"@import|url\((?!#)", html.split("<script", 1)[0])
    assert "default-src 'none'" in html


def test_hostile_text_stays_text() -> None:
    study = example.study()
    study.vocabulary.words[5] = "</script><script>alert(1)</script>"
    assert "<script>alert" not in render(study)


def test_a_study_of_failures_only_still_makes_a_page(tmp_path: Path) -> None:
    from zipflm.analysis.study import build

    members = [example.member("SM", problem="diverged")]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    page = write_report(study, tmp_path, "study").read_text()
    assert "diverged" in page and "nan" not in (tmp_path / "table.csv").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(None), "-"),
        (number(float("nan")), "-"),
        (number(1234.567), "1,234.57"),
        (number(float("inf")), "infinite"),
        (number(12_345_678_901.0), "1.23e+10"),
        (millions(246_933_504), "246.9M"),
        (millions(2_458_880), "2.46M"),
        (millions(123_456), "123K"),
        (millions(256), "256"),
        (duration(12.34), "12.3 s"),
        (duration(179.5), "180 s"),
        (duration(600), "10 min"),
        (duration(30 * 3600), "30.0 h"),
        (duration(None), "-"),
        (memory(3 * 2**30), "3.00 GiB"),
        (memory(None), "-"),
    ],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("word", "code"), [("a", "`a`"), ("`", "`` ` ``"), ("a``b", "``` a``b ```")]
)
def test_words_of_backticks_stay_words(word: str, code: str) -> None:
    assert _code(word) == code
