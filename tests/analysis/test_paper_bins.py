"""The data of the paper's bar charts, compared with its source and with its table."""

import numpy as np
import pytest

from zipflm.analysis.frequency_bins import BIN_NAMES
from zipflm.analysis.paper import comparison_row
from zipflm.analysis.paper_bins import BIN_MODELS, BINS

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
    place = BIN_MODELS[dataset].index(model)
    (found,) = (b for b in BINS[dataset] if b.name == name)
    expected = PRINTED[dataset, name, model]
    assert (found.loss[place], found.previous_loss[place]) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("dataset", BINS)
def test_every_bin_has_every_model_and_is_one_of_ours(dataset: str) -> None:
    assert [b.name for b in BINS[dataset]] == [name for name in BIN_NAMES if name != "0"]
    for b in BINS[dataset]:
        assert len(b.loss) == len(BIN_MODELS[dataset])
        # No sentence of Billion Word follows another one: its lines are shuffled.
        is_first = dataset == "billion-word" and b.name == "EOS"
        assert len(b.previous_loss) == (0 if is_first else len(b.loss))
        assert (b.train_tokens is None) == (b.name in ("EOS", "UNK"))


def test_they_hold_the_words_of_the_test_sets() -> None:
    assert sum(b.tokens for b in BINS["wikitext-103"]) == 245_554  # of 245,569 in the text
    assert sum(b.tokens for b in BINS["billion-word"]) == 8_085_427


def test_on_wikitext_103_they_average_to_the_tables_test_perplexity() -> None:
    """So the figures' data and the table are of the same runs; on Billion Word they are not."""
    tokens = np.array([b.tokens for b in BINS["wikitext-103"]])
    for i, model in enumerate(BIN_MODELS["wikitext-103"]):
        loss = np.array([b.loss[i] for b in BINS["wikitext-103"]])
        perplexity = np.exp((loss * tokens).sum() / tokens.sum())
        row = comparison_row("wikitext-103", model)
        assert row is not None and perplexity == pytest.approx(row.test, abs=0.015)
