"""Loss by frequency bin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.vocabulary import Vocabulary
from zipflm.studies.bins import BIN_NAMES, bin_indices, previous_words
from zipflm.studies.statistics import Sample

COUNTS = np.array([0, 0, 50, 70, 2_000_000, 1_000_000, 100_001, 101, 100, 11, 10, 1, 0])


def test_bin_boundaries():
    ids = np.arange(2, len(COUNTS))
    names = [BIN_NAMES[i] for i in bin_indices(ids, COUNTS)]
    assert names == [
        "EOS",
        "UNK",
        "over 1M",
        "100K-1M",
        "100K-1M",
        "101-1K",
        "11-100",
        "11-100",
        "1-10",
        "1-10",
        "0",
    ]


def loss_by_bin(ids, nll, deciding_words):
    words = ["<s>", "<pad>", "</s>", "<unk>", *map(str, range(4, len(COUNTS)))]
    by_seed = {model: losses[None] for model, losses in nll.items()}
    sample = Sample(ids, np.array([0]), Vocabulary(words, COUNTS), by_seed, "A")
    return sample.loss_by_bin(deciding_words)


def test_bins_count_types_and_training_tokens():
    ids = np.array([8, 8, 9, 10])
    bins = loss_by_bin(ids, {}, ids)
    by_name = {b.name: (b.types, b.train_tokens, b.tokens) for b in bins}
    assert by_name["11-100"] == (2, 111, 3)
    assert by_name["1-10"] == (1, 10, 1)


words = st.lists(
    st.tuples(st.integers(2, len(COUNTS) - 1), st.floats(0, 20), st.floats(0, 20)),
    min_size=1,
    max_size=60,
)


@given(words, st.booleans())
def test_bins_partition_the_words_and_average_to_the_total(rows, by_previous):
    ids = np.array([row[0] for row in rows])
    nll = {"A": np.array([row[1] for row in rows]), "B": np.array([row[2] for row in rows])}
    deciding_words = previous_words(ids) if by_previous else ids
    bins = loss_by_bin(ids, nll, deciding_words)
    assert sum(b.tokens for b in bins) == len(ids)
    assert sum(b.types for b in bins) == len(np.unique(deciding_words))
    for model, losses in nll.items():
        total = sum(b.tokens * (b.loss[model] or 0.0) for b in bins)
        assert total / len(ids) == pytest.approx(losses.mean(), abs=1e-9)
    assert all(b.tokens > 0 for b in bins)
