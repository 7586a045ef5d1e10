"""Padding takes no place, on whichever side it is."""

import pytest
import torch
from transformers import DynamicCache

from zipflm.interop.huggingface.modeling import View, after_last_word

WORDS = torch.tensor([[2, 5, 6, 7], [2, 5, 1, 1]])


def view(mask, words=WORDS, cache=None):
    return View(words, cache, None if mask is None else torch.tensor(mask))


@pytest.mark.parametrize(
    ("mask", "is_plain"),
    [
        (None, True),
        ([[1, 1, 1, 1], [1, 1, 1, 1]], True),
        ([[1, 1, 1, 1], [1, 1, 0, 0]], True),
        ([[1, 1, 1, 1], [0, 0, 1, 1]], False),
        ([[1, 1, 1, 1], [1, 0, 1, 1]], False),
    ],
)
def test_the_model_is_told_nothing_where_causality_hides_all_padding(mask, is_plain):
    assert view(mask).is_plain == is_plain
    assert not view(mask, cache=DynamicCache()).is_plain


def test_words_are_numbered_without_the_padding_before_them():
    padded = view([[1, 1, 1, 1], [0, 0, 1, 1]])
    assert padded.position.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert view(None).position == 0


def test_no_word_sees_padding_or_what_follows_it_and_padding_sees_itself():
    seen = view([[1, 1, 1, 1], [0, 0, 1, 1]]).visible(4)
    assert seen.shape == (2, 1, 4, 4)
    assert seen[0, 0].equal(torch.ones(4, 4, dtype=torch.bool).tril())
    assert seen[1, 0].tolist() == [
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
        [False, False, True, True],
    ]


def test_new_words_see_each_other_and_all_earlier_ones_on_the_device_where_they_are():
    cache = DynamicCache()
    cache.update(torch.ones(2, 1, 3, 1), torch.ones(2, 1, 3, 1), 0)
    seen = view(None, cache=cache).visible(4)
    assert seen.equal(torch.ones(4, 7, dtype=torch.bool).tril(3))
    assert view(None, WORDS.to("meta"), cache).visible(4).device.type == "meta"
    assert view(None, WORDS[:, :1], cache).visible(1) is None


def test_a_row_ends_with_its_last_word_for_predictions():
    hidden = torch.arange(8.0).view(2, 4, 1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    assert after_last_word(hidden, mask)[..., 0].tolist() == [[0, 1, 2, 3], [4, 5, 5, 5]]


def test_positions_that_are_not_these_are_refused():
    padded = view([[1, 1, 1, 1], [0, 0, 1, 1]])
    padded.require_positions(torch.tensor([[0, 1, 2, 3], [9, 9, 0, 1]]))  # padding has none
    for wrong in ([[0, 1, 0, 1], [0, 0, 0, 1]], [[0, 1, 2, 3], [0, 1, 2, 3]]):
        with pytest.raises(ValueError, match="positions follow from attention_mask"):
            padded.require_positions(torch.tensor(wrong))


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"attention_mask.shape=\(1, 3\).*\(2, 4\)"):
        view([[1, 1, 1]])
