import pytest
import torch
from numerics import assert_close

from zipflm import AdaptiveSoftmax, Bands
from zipflm.model.lazy_log_probs import Groups, LazyLogProbs
from zipflm.model.outputs import FullSoftmax

BANDS = Bands(vocab_size=40, cutoffs=(8, 20), dim=8, factor=2)
FORBIDDEN = torch.arange(40) % 3 == 0


@pytest.mark.parametrize("forbidden", [None, FORBIDDEN])
def test_the_parts_are_those_of_the_whole_in_any_order_of_rows(forbidden):
    output, hidden = AdaptiveSoftmax(BANDS).double(), torch.randn(5, 8).double()
    whole = output.log_probs(hidden)
    if forbidden is not None:
        whole = whole.masked_fill(forbidden, -torch.inf)
    lazy = LazyLogProbs(output, Groups(output.edges, forbidden), hidden)
    rows = torch.tensor([3, 0, 3])
    assert torch.equal(lazy.head_NH.isinf(), whole[:, :8].isinf())
    parts = [
        (lazy.head_NH, whole[:, :8]),
        (lazy.of_tail(1, rows), whole[rows, 8:20]),
        (lazy.of_tail(2, rows[:1]), whole[rows[:1], 20:]),
    ]
    for actual, expected in parts:
        assert_close(actual.exp(), expected.exp(), 1e-12)
    assert lazy.num_opened == 4


def test_the_head_says_how_likely_each_tail_is():
    output, hidden = AdaptiveSoftmax(BANDS).double(), torch.randn(5, 8).double()
    lazy = LazyLogProbs(output, Groups(output.edges, FORBIDDEN), hidden)
    probs = output.log_probs(hidden).exp()
    sums = torch.stack([probs[:, 8:20].sum(1), probs[:, 20:].sum(1)], dim=1)
    assert_close(lazy.tails_NC.exp(), sums, 1e-12)


def test_groups_count_the_words_that_may_come():
    groups = Groups(BANDS.edges, FORBIDDEN)
    assert groups.sizes == [8, 12, 20]
    assert groups.num_allowed == [5, 8, 13]
    assert Groups(BANDS.edges).num_allowed == groups.sizes


def test_a_full_softmax_is_all_head():
    output, hidden = FullSoftmax(40, 6, 8), torch.randn(5, 8)
    lazy = LazyLogProbs(output, Groups(output.edges), hidden)
    assert_close(lazy.head_NH, output.log_probs(hidden), 1e-6)
    assert lazy.tails_NC.shape == (5, 0)
