"""Formatting of rows."""

import numpy as np
import pytest

from zipflm.language.score_command import ScoreOptions, ScoreTable


def table(adp, has_file_column=False, **options):
    return ScoreTable(ScoreOptions(**options), adp.statistics, has_file_column=has_file_column)


def rows(adp, nll, **options):
    """Return the rows of the line `ba`."""
    return list(table(adp, **options).line("a.txt", 3, adp.reader.line("ba"), np.array(nll)))


def test_header_quotes_the_protocol(adp):
    header = table(adp).header({"run": "my run\t", "block": 7}).split("\t")
    assert header[-1] == "# run=my%20run%09 block=7"


def test_no_negative_zero(adp):
    row, _ = rows(adp, [0.0, 1.0])
    assert row.split("\t")[3] == "0.000000"


def test_overflowing_perplexity_is_null(adp):
    (row,) = rows(adp, [1e9, 1.0], per="line", json=True)
    assert '"perplexity": null' in row


@pytest.mark.parametrize("per", ["word", "line"])
def test_names_the_file(adp, per):
    found = rows(adp, [1.0, 1.0], per=per, has_file_column=True)
    assert all(row.endswith("\ta.txt") for row in found)
