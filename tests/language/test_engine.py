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


@pytest.mark.parametrize("skip", [0, 3, 20])
@pytest.mark.parametrize("length", [5, 16, 17, 30, 60])
def test_the_vectors_before_places_are_those_that_scores_come_from(engine, length, skip):
    document = np.append(np.arange(4, 3 + skip + length) % 60 + 4, END)
    places = skip + np.array([length - 1, 0, 2, length // 2])
    expected = engine.nll([document], skip)[0][places - skip]
    targets = torch.from_numpy(document[places])
    with torch.no_grad():
        nll = engine.model.output.nll(engine.hidden_before(document, places, skip), targets)
        for place, inputs, wanted in zip(
            places, engine.inputs_before(document, places, skip), expected, strict=True
        ):
            hidden = engine.model(torch.from_numpy(inputs)[None])[0, -1:]
            alone = engine.model.output.nll(hidden, torch.from_numpy(document[[place]]))
            assert alone.item() == pytest.approx(wanted, abs=1e-5)
    np.testing.assert_allclose(nll.numpy(), expected, atol=1e-5)


def test_no_document_is_no_number(engine):
    assert engine.nll([]) == []
