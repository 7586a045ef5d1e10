"""Counts of parameters beside the paper's, from configs alone."""

import pytest
from rich.console import Console

from zipflm.presets import from_name
from zipflm.sizes import SizeRow, paper_sizes, parts_table, sizes_table
from zipflm.studies.paper import PaperModel


def printed(table):
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


ROWS = paper_sizes()


def test_every_row_of_the_paper_is_counted_as_printed():
    assert len(ROWS) == 34
    assert not [(row.paper, row.num_params) for row in ROWS if not row.matches]
    counts = {row.paper.preset: row.num_params for row in ROWS}
    assert counts["wikitext-103/ADP-T"] == 246_933_504
    assert counts["wikitext-103/SM"] == 476_758_016
    assert counts["wikitext-103/ADP-T/no-reduction"] == 340_198_400
    assert counts["billion-word/CNN"] == 365_764_992
    assert counts["billion-word/ADP-T/very-large"] == 1_026_194_688


@pytest.mark.parametrize(
    ("count", "figure", "matches"),
    [
        (246_950_000, "247.0", True),  # a half is rounded up
        (246_949_999, "247.0", False),
        (246_949_999, "246.9", True),
        (246_949_999, "247", True),
    ],
)
def test_a_count_matches_at_the_papers_own_precision(count, figure, matches):
    row = SizeRow(PaperModel("Table 0", "made up", "wikitext-103/ADP-T", figure), count)
    assert row.matches is matches


def test_a_row_that_is_off_says_so():
    wrong = SizeRow(PaperModel("Table 0", "made up", "wikitext-103/ADP-T", "247.0"), 246_933_504)
    right = ROWS[0]
    lines = printed(sizes_table([wrong, right])).splitlines()
    assert "246,933,504" in lines[1] and "247.0M" in lines[1] and lines[1].split()[-1] == "NO"
    assert lines[2].split()[-1] == "yes"


def test_parts_add_up_to_the_whole():
    config = from_name("tiny/ADP-T")
    *_, total = lines = printed(parts_table(config)).splitlines()
    assert total.split() == ["total", f"{config.num_params():,}"]
    parts = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert parts.keys() == config.params_by_part().keys()
    assert sum(int(count.replace(",", "")) for count, _ in parts.values()) == config.num_params()
    assert sum(float(share.rstrip("%")) for _, share in parts.values()) == pytest.approx(
        100, abs=0.5
    )
