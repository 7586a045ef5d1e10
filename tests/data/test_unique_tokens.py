import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.batches import unique_tokens


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.integers(0, 80),
)
def test_every_word_is_found_at_its_place(words, least):
    text = torch.tensor([words])
    found = unique_tokens(text, least)
    assert torch.equal(found.ids_U[found.places_BT], text)
    assert found.shape == text.shape
    number = len(set(words))
    assert len(found.ids_U[:number].unique()) == number
    assert (found.ids_U[number:] == found.ids_U[number - 1]).all()


@pytest.mark.parametrize(("distinct", "size"), [(1, 64), (56, 64), (57, 128), (1000, 1152)])
def test_sizes_are_sixteenths_of_the_text_with_some_room(distinct, size):
    words = torch.arange(1024).clamp(max=distinct - 1).view(4, 256)
    assert len(unique_tokens(words).ids_U) == size


def test_a_size_that_was_needed_once_is_kept():
    assert len(unique_tokens(torch.zeros(4, 256, dtype=torch.int64), least=192).ids_U) == 192
