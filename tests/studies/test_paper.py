"""Results of the paper."""

import math

import pytest
from studies import example_study as example

from zipflm.presets import from_name
from zipflm.studies.bins import BIN_MODELS, BIN_NAMES, paper_bins
from zipflm.studies.paper import MODELS, comparison_row, setting_row
from zipflm.studies.report import markdown

# Tables 3 and 4: valid and test perplexity, hours of training, millions of parameters.
PRINTED = {
    ("wikitext-103", "SM"): (23.87, 24.92, 57, "476.8"),
    ("wikitext-103", "BPE-T"): (22.46, 23.45, 30, "235.7"),
    ("wikitext-103", "CNN"): (20.86, 21.79, 70, "266.3"),
    ("wikitext-103", "ADP-T"): (19.79, 20.51, 30, "246.9"),
    ("billion-word", "BPE-T"): (27.44, 27.51, 34, "234.7"),
    ("billion-word", "ASM"): (26.97, 27.06, 62, "532.8"),
    ("billion-word", "ADP-T"): (25.51, 25.58, 43, "330.8"),
}


@pytest.mark.parametrize(("dataset", "model"), PRINTED)
def test_rows_match_the_paper(dataset, model):
    row = comparison_row(dataset, model)
    assert (row.valid, row.test, row.hours, row.params) == PRINTED[dataset, model]


def test_every_row_matches_a_preset():
    for model in MODELS:
        assert model.matches(from_name(model.preset).num_params()), model


@pytest.mark.parametrize(
    ("label", "valid"),
    [
        ("ADP-T bands 5k/155k/100k", 20.06),
        ("ADP-T bands 20K/40K/200K", 19.79),
        ("ADP tail dropout 0.2", 21.23),
        ("ADP tail dropout 0", 24.74),
        ("ADP-T bands 1k/9k", None),
        ("ADP bands 5k/155k/100k", None),
        ("ADP-T tail dropout 0.2", None),
    ],
)
def test_finds_ablations_by_setting(label, valid):
    study = example.study_of(example.member(label), dataset="wikitext-103")
    row = study.rows[0].paper
    assert (row.valid if row else None) == valid
    assert (f"| {valid} |" in markdown(study)) == (valid is not None)
    assert setting_row("billion-word", label) is None


# Loss by frequency of the word and of the previous word, from the source of the figures.
PRINTED_BINS = {
    ("wikitext-103", "EOS", "SM"): (0.7679863812016369, 2.117589473724365),
    ("wikitext-103", "1-10", "ADP-T"): (8.292026400112833, 2.954086473867349),
    ("wikitext-103", "101-1K", "CNN"): (5.64092552202246, 2.740407399964453),
    ("wikitext-103", "100K-1M", "BPE-T"): (2.210394494696273, 3.6385442940495016),
    ("billion-word", "1-10", "BPE"): (14.353478630162186, 3.454023920072953),
    ("billion-word", "1-10", "ADP"): (13.59913290261756, 3.6734628776347895),
}


@pytest.mark.parametrize(("dataset", "name", "model"), PRINTED_BINS)
def test_paper_bins_match_the_printed_losses(dataset, name, model):
    for previous, expected in enumerate(PRINTED_BINS[dataset, name, model]):
        (found,) = (b for b in paper_bins(dataset, previous=bool(previous)) if b.name == name)
        assert found.loss[model] == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    # WikiText-103 itself has 245,569 tokens.
    ("dataset", "tokens"),
    [("wikitext-103", 245_554), ("billion-word", 8_085_427)],
)
def test_paper_bins_are_complete(dataset, tokens):
    for previous in (False, True):
        bins = paper_bins(dataset, previous=previous)
        assert [b.name for b in bins] == [name for name in BIN_NAMES if name != "0"]
        assert sum(b.tokens for b in bins) == tokens
        for b in bins:
            assert tuple(b.loss) == BIN_MODELS[dataset]
            # Lines of Billion Word are shuffled, so no word follows the end of a sentence.
            is_first = previous and dataset == "billion-word" and b.name == "EOS"
            assert [loss is None for loss in b.loss.values()] == [is_first] * len(b.loss)
            assert (b.train_tokens is None) == (b.name in ("EOS", "UNK"))


def test_wikitext_103_bins_average_to_the_test_perplexity():
    """Figures and tables are from the same runs, unlike on Billion Word."""
    bins = paper_bins("wikitext-103", previous=False)
    for model in BIN_MODELS["wikitext-103"]:
        total = sum(b.tokens * (b.loss[model] or 0.0) for b in bins)
        row = comparison_row("wikitext-103", model)
        perplexity = math.exp(total / sum(b.tokens for b in bins))
        assert row is not None and perplexity == pytest.approx(row.test, abs=0.015)
