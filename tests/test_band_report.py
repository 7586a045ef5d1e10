"""Suggested bands beside the paper's, from a data folder or a list of words."""

import json

import numpy as np
import pytest
from rich.console import Console

from zipflm.band_report import band_report
from zipflm.data.vocabulary import END, UNKNOWN


def test_counts_are_those_of_the_training_text_with_line_ends_and_unknown_words(word_data):
    report = band_report(str(word_data.path), dim=32, speeds="cpu")
    tokens = word_data.tokens("train").ids
    counts = np.bincount(tokens, minlength=len(word_data.vocabulary))
    assert counts[END] > 0 and counts[UNKNOWN] >= 0
    for row in (report.suggested, report.paper):
        edges = row.bands.edges
        shares = [counts[a:b].sum() / counts.sum() for a, b in zip(edges, edges[1:], strict=False)]
        assert row.coverage == pytest.approx(shares)


def test_the_table_has_a_row_for_each_and_json_the_same_numbers(word_data):
    report = band_report(str(word_data.path), dim=32, speeds="cpu", tails=1)
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(report.table())
    _, suggested, paper = capture.get().splitlines()
    assert suggested.startswith("suggested") and paper.startswith("the paper's proportions")
    assert f"{report.suggested.params:,}" in suggested and paper.rstrip().endswith("1.00")
    values = json.loads(report.as_json())
    assert values["suggested"]["cutoffs"] == list(report.suggested.bands.cutoffs)
    assert values["paper"]["parameters"] == report.paper.params
    cutoffs = report.suggested.bands.cutoffs[0]
    assert f"input.cutoffs={cutoffs} output.cutoffs={cutoffs}" in report.notes()


def test_a_file_of_words_and_counts_will_do(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"word{rank} {1000 // rank}\n" for rank in range(1, 301)))
    assert band_report(str(path), dim=64).suggested.bands.vocab_size == 304


def test_an_unknown_machine_is_refused(word_data):
    with pytest.raises(ValueError, match="speeds='abacus': choose from h200, cpu"):
        band_report(str(word_data.path), dim=32, speeds="abacus")
