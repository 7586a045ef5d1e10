"""The data of the paper's bar charts, compared with its source and with its table."""

import math

import pytest

from zipflm.studies.bins import BIN_MODELS, BIN_NAMES, bins_of_paper
from zipflm.studies.paper import comparison_row

# Loss by frequency of the word and of the word before, as the figures' source gives them.
PRINTED = {
    ("wikitext-103", "EOS", "SM"): (0.7679863812016369, 2.117589473724365),
    ("wikitext-103", "1-10", "ADP-T"): (8.292026400112833, 2.954086473867349),
    ("wikitext-103", "101-1K", "CNN"): (5.64092552202246, 2.740407399964453),
    ("wikitext-103", "100K-1M", "BPE-T"): (2.210394494696273, 3.6385442940495016),
    ("billion-word", "1-10", "BPE"): (14.353478630162186, 3.454023920072953),
    ("billion-word", "1-10", "ADP"): (13.59913290261756, 3.6734628776347895),
}


@pytest.mark.parametrize(("dataset", "name", "model"), PRINTED)
def test_a_bar_is_as_high_as_in_the_paper(dataset: str, name: str, model: str) -> None:
    for previous, expected in enumerate(PRINTED[dataset, name, model]):
        (found,) = (b for b in bins_of_paper(dataset, previous=bool(previous)) if b.name == name)
        assert found.loss[model] == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    # Of WikiText-103, 245,569 are in the text.
    ("dataset", "tokens"),
    [("wikitext-103", 245_554), ("billion-word", 8_085_427)],
)
def test_every_bin_has_every_model_and_all_hold_the_test_set(dataset: str, tokens: int) -> None:
    for previous in (False, True):
        bins = bins_of_paper(dataset, previous=previous)
        assert [b.name for b in bins] == [name for name in BIN_NAMES if name != "0"]
        assert sum(b.tokens for b in bins) == tokens
        for b in bins:
            assert tuple(b.loss) == BIN_MODELS[dataset]
            # No sentence of Billion Word follows another one: its lines are shuffled.
            is_first = previous and dataset == "billion-word" and b.name == "EOS"
            assert [loss is None for loss in b.loss.values()] == [is_first] * len(b.loss)
            assert (b.train_tokens is None) == (b.name in ("EOS", "UNK"))


def test_on_wikitext_103_they_average_to_the_tables_test_perplexity() -> None:
    """So the figures' data and the table are of the same runs; on Billion Word they are not."""
    bins = bins_of_paper("wikitext-103", previous=False)
    for model in BIN_MODELS["wikitext-103"]:
        total = sum(b.tokens * (b.loss[model] or 0.0) for b in bins)
        row = comparison_row("wikitext-103", model)
        perplexity = math.exp(total / sum(b.tokens for b in bins))
        assert row is not None and perplexity == pytest.approx(row.test, abs=0.015)
