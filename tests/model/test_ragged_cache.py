"""Rows of different lengths in one cache give the same results as separate rows."""

import pytest
import torch

from zipflm import LanguageModel, preset
from zipflm.settings import override

TEXTS = [[2, 17, 250, 9, 4], [2, 390], [2, 8, 8], [2, 5, 6, 7, 8, 9, 10]]


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def a_model(*overrides):
    torch.manual_seed(1)
    config = override(preset("tiny", "ADP-T"), ["decoder.num_layers=2", *overrides])
    return LanguageModel(config).eval()


def alone(model, words):
    return model(torch.tensor([words]))[0, -1]


def joined(model, texts, capacity=16):
    """A cache of texts that joined one by one, except for one pair of unequal length."""
    ragged = model.new_cache(0, 0)
    for some in ([texts[0]], texts[1:3], *([text] for text in texts[3:])):
        _, cache = model.read([torch.tensor(text) for text in some])
        ragged.join(cache, capacity)
    return ragged


@pytest.mark.parametrize(
    "overrides",
    [(), ("decoder.positions=rotary",), ("decoder.positions=rotary", "decoder.qk_norm=true")],
    ids=["sinusoidal", "rotary", "normed"],
)
def test_rows_do_not_affect_each_other(overrides):
    model = a_model(*overrides)
    ragged, texts = joined(model, TEXTS), [list(text) for text in TEXTS]
    for step in range(4):
        new = [11 + step, 300 - step, 4, 77]
        hidden = model(torch.tensor(new).unsqueeze(1), ragged)[:, -1]
        texts = [[*text, word] for text, word in zip(texts, new, strict=True)]
        expected = torch.stack([alone(model, text) for text in texts])
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert ragged.lengths == [len(text) for text in texts]


def test_several_new_words_are_causal():
    model = a_model()
    ragged = joined(model, TEXTS)
    new = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])
    hidden = model(new, ragged)
    for row, text in enumerate(TEXTS):
        expected = model(torch.tensor([[*text, *new[row].tolist()]]))[0, -2:]
        torch.testing.assert_close(hidden[row], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gone", [{0}, {3}, {0, 1}, {1, 3}, {0, 2, 3}, set()])
def test_dropping_rows_keeps_the_others(gone):
    model = a_model()
    ragged = joined(model, TEXTS)
    order = ragged.drop(gone)
    assert sorted(order) == sorted(set(range(4)) - gone)
    hidden = model(torch.full((len(order), 1), 12), ragged)[:, -1]
    expected = torch.stack([alone(model, [*TEXTS[row], 12]) for row in order])
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


def test_new_row_replaces_a_longer_dropped_one():
    model = a_model()
    ragged = joined(model, TEXTS)
    ragged.drop({3})  # the longest; its words stay in memory
    ragged.join(model.read([torch.tensor([2, 99])])[1], 16)
    hidden = model(torch.full((4, 1), 12), ragged)[-1, -1]
    torch.testing.assert_close(hidden, alone(model, [2, 99, 12]), rtol=0, atol=1e-5)


def test_does_not_grow_by_the_length_of_dropped_rows():
    model, texts = a_model(), [torch.tensor([2, 99])] * 2
    ragged = model.new_cache(0, 0)
    ragged.join(model.read(texts)[1], 1000)
    ragged.drop({0})
    ragged.join(model.read(texts)[1], 8)
    assert (ragged.rows, ragged.capacity) == (3, 8)


def test_first_rows_take_no_more_memory_than_they_need():
    model = a_model()
    ragged = model.new_cache(0, 0)
    ragged.join(model.read([torch.tensor([2, 99])] * 5)[1], 16)
    assert ragged.keys_LBHCK.shape[1] == 5


def test_frees_memory_after_the_last_row():
    ragged = joined(a_model(), TEXTS)
    assert ragged.capacity == 16
    assert ragged.drop({0, 1, 2, 3}) == []
    assert ragged.rows == ragged.capacity == 0
