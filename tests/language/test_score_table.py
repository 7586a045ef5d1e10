"""Formatting of rows."""

import numpy as np
import pytest

from zipflm.language.score_command import ScoredLine, ScoreOptions, ScoreTable


def table(adp, has_file_column=False, **options):
    return ScoreTable(ScoreOptions(**options), adp.statistics, has_file_column=has_file_column)


def line(adp, text, nll):
    return ScoredLine("a.txt", 3, adp.reader.line(text), np.array(nll))


def test_header_quotes_the_protocol(adp):
    header = table(adp).header({"run": "my run\t", "block": 7}).split("\t")
    assert header[-1] == "# run=my%20run%09 block=7"


def test_no_negative_zero(adp):
    (row, _) = table(adp).line(line(adp, "ba", [0.0, 1.0]))
    assert row.split("\t")[3] == "0.000000"


def test_overflowing_perplexity_is_null(adp):
    (row,) = table(adp, per="line", format="jsonl").line(line(adp, "ba", [1e9, 1.0]))
    assert '"perplexity": null' in row


@pytest.mark.parametrize("per", ["word", "line"])
def test_names_the_file(adp, per):
    rows = list(table(adp, per=per, has_file_column=True).line(line(adp, "ba", [1.0, 1.0])))
    assert all(row.endswith("\ta.txt") for row in rows)
