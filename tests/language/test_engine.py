"""Ids in, numbers out."""

import numpy as np
import pytest
import torch
from loaded_models import loaded

from zipflm.data.vocabulary import END


@pytest.fixture(scope="module")
def engine(word_data):
    return loaded(word_data, batch_tokens=16).engine


def test_the_vectors_after_prefixes_come_in_their_order(engine):
    prefixes = [np.array([5, 6, 7]), np.array([], dtype=np.int64), np.array([8]), np.arange(4, 40)]
    found = engine.hidden_after(prefixes)
    for row, prefix in zip(found, prefixes, strict=True):
        words = torch.tensor([END, *prefix.tolist()])[-16:]  # what fits into the block
        with torch.no_grad():
            expected = engine.model(words[None])[0, -1]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [5, 30])
def test_the_vectors_before_places_are_those_after_the_prefixes(engine, length):
    document, places = np.append(np.arange(4, 3 + length), END), np.array([0, 2, length - 1])
    found = engine.hidden_before(document, places)
    expected = engine.hidden_after([document[:place] for place in places])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_no_document_is_no_number(engine):
    assert engine.nll([]) == []
