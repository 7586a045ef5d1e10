"""Rows over seeds, members without a result, and agreement of bins and totals."""

import numpy as np
import pytest
from analysis import example_study as example

from zipflm.analysis.paper import comparison_row
from zipflm.analysis.paper_bins import BIN_MODELS, BINS
from zipflm.analysis.report import markdown
from zipflm.analysis.study import build


def test_bins_average_to_the_tables_loss() -> None:
    study = example.study()
    for bins in (study.word_bins, study.previous_bins):
        for label in example.LABELS:
            total = sum(b.tokens * (b.loss[label] or 0) for b in bins) / sum(b.tokens for b in bins)
            assert total == pytest.approx(example.total_loss(study, label))


def test_seeds_make_one_row_with_their_spread() -> None:
    study = example.study(seeds=3)
    assert [row.label for row in study.rows] == list(example.LABELS)
    row = study.rows[0]
    values = [m.scores["test"].perplexity for m in row.members]
    summary = row.perplexity["test"]
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.deviation == pytest.approx(np.std(values, ddof=1))


def test_one_seed_has_no_spread() -> None:
    assert example.study().rows[0].perplexity["test"].deviation is None


def test_a_member_that_diverged_keeps_its_row_and_says_why() -> None:
    study = example.study(broken="CNN")
    row = next(row for row in study.rows if row.label == "CNN")
    assert row.problem == "diverged: <loss> nan"
    assert row.perplexity == {}
    assert len(study.rows) == 8 and len(study.finished) == 7
    assert "CNN" not in study.word_bins[0].loss


def test_without_adpt_the_first_finished_row_is_the_reference() -> None:
    assert example.study(broken="ADP-T").reference == "SM"
    assert example.study().reference == "ADP-T"


def test_a_study_of_nothing_but_failures_has_empty_tables() -> None:
    members = [example.member("SM", problem="diverged")]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    assert study.reference == "" and study.words == {} and study.finished == ()


def test_the_papers_rows_are_found_for_its_datasets_only() -> None:
    row = example.study(dataset="wikitext-103").rows[-1]
    assert row.paper is not None and row.paper.test == 20.51
    assert example.study(dataset="tiny").rows[-1].paper is None


@pytest.mark.parametrize(
    ("label", "valid"),
    [
        ("ADP-T bands 5k/155k/100k", 20.06),
        ("ADP-T bands 20K/40K/200K", 19.79),
        ("ADP tail dropout 0.2", 21.23),
        ("ADP-T bands 1k/9k", None),
        ("ADP-T tail dropout 0.2", None),
    ],
)
def test_the_papers_ablations_are_found_by_their_setting(label: str, valid: float | None) -> None:
    study = build(
        [example.member(label)], example.text(), title="t", dataset="wikitext-103", facts={}
    )
    row = study.rows[0].paper
    assert (row.valid if row else None) == valid
    assert "-" in markdown(study)


def test_the_papers_bins_average_to_its_test_perplexity() -> None:
    """So the figures' data and the table are of the same runs; on Billion Word they are not."""
    tokens = np.array([b.tokens for b in BINS["wikitext-103"]])
    for i, model in enumerate(BIN_MODELS["wikitext-103"]):
        loss = np.array([b.loss[i] for b in BINS["wikitext-103"]])
        perplexity = np.exp((loss * tokens).sum() / tokens.sum())
        row = comparison_row("wikitext-103", model)
        assert row is not None and perplexity == pytest.approx(row.test, abs=0.015)
