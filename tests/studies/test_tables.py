"""The comparison table in all formats."""

import csv
import json
import math
import re

import pytest
from studies import example_study as example

from zipflm.studies.report import to_csv, to_json, to_latex
from zipflm.studies.study import SeedMean
from zipflm.studies.tables import columns, duration, memory, millions, number, spread


def lines(study):
    return list(csv.DictReader(to_csv(study).splitlines()))


def names(study):
    return [f"{column.group} {column.title}".strip() for column in columns(study)]


def test_csv_and_json_hold_the_same_values():
    study = example.study(dataset="wikitext-103")
    rows = json.loads(json.dumps(to_json(study), allow_nan=False))["rows"]
    assert [line["model"] for line in lines(study)] == [row["model"] for row in rows]
    for line, row in zip(lines(study), rows, strict=True):
        assert float(line["perplexity_test"]) == row["perplexity_test"]
        assert int(line["parameters_all"]) == row["parameters_all"]
        assert float(line["the_paper's_test"]) == row["paper"]["test"]


def test_shows_seeds_and_their_spread():
    study = example.study(seeds=2)
    assert lines(study)[0]["seeds"] == "1 2"
    (column,) = (c for c in columns(study) if (c.group, c.title) == ("perplexity", "test"))
    summary = study.rows[0].perplexity["test"]
    assert column.value(study.rows[0]) == summary.mean
    assert column.text(study.rows[0]) == f"{summary.mean:,.2f} \u00b1 {summary.deviation:,.2f}"


def test_column_of_known_words():
    study = example.study()
    assert "perplexity test, known words" not in names(study)
    assert "perplexity test, known words" in names(example.with_unknown(study))


def test_columns_of_the_paper_come_last():
    ours = names(example.study(dataset="tiny"))
    assert not any(name.startswith("the paper's") for name in ours)
    theirs = names(example.study(dataset="wikitext-103"))
    assert theirs[: len(ours)] == ours
    assert theirs[len(ours) :] == [
        "the paper's parameters",
        "the paper's valid",
        "the paper's test",
        "the paper's hours on 8 GPUs",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(None), "-"),
        (number(math.nan), "-"),
        (number(1234.567), "1,234.57"),
        (number(math.inf), "infinite"),
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
        (memory(5 * 2**20), "5 MiB"),
        (spread(None), "-"),
        (spread(SeedMean(mean=2.0)), "2.00"),
    ],
)
def test_number_formats(text, expected):
    assert text == expected


def test_latex_table_escapes_text():
    hostile = "[a_b & 50 % \\input{x} #1 $y$ ~^ <|>"
    members = [example.member("SM", 1), example.member("SM", 2), example.member(hostile, rank=1)]
    study = example.study_of(*members)
    comment, begin, *lines = to_latex(study, "two\nlines").splitlines()
    assert comment == "% two lines" and lines[-1] == r"\end{tabular}"
    columns = begin.removeprefix(r"\begin{tabular}{").removesuffix("}")
    cells = [re.split(r"(?<!\\)&", line) for line in lines if line.endswith(r"\\")]
    assert [len(row) for row in cells] == [len(columns)] * 3  # names, two models
    assert cells[0][0].strip() == "model" and columns[0] == "l"
    escaped = (
        r"{[}a\_b \& 50 \% \textbackslash{}input\{x\} \#1 \$y\$ \textasciitilde{}"
        r"\textasciicircum{} \textless{}\textbar{}\textgreater{}"
    )
    assert cells[2][0].strip() == escaped and r"$\pm$" in cells[1][1]
    text = "\n".join(lines)
    assert text.count(r"\textbf{") == 2  # one per split
    assert set(re.findall(r"\\[a-z]+", text)) <= {
        r"\toprule", r"\midrule", r"\bottomrule", r"\textbf", r"\pm",
        r"\end", r"\textbackslash", r"\textasciitilde", r"\textasciicircum", r"\textless",
        r"\textbar", r"\textgreater",
    }  # fmt: skip
    assert re.sub(r"\\[{}]", "", text).count("{") == re.sub(r"\\[{}]", "", text).count("}")
    assert r"\textbf" not in to_latex(example.study(broken="CNN"), "")
