"""Scoring of ids."""

import numpy as np
import pytest
import torch
from loaded_models import loaded

from zipflm.data.vocabulary import END
from zipflm.evaluation.documents import Document


@pytest.fixture(scope="module")
def engine(word_data):
    return loaded(word_data, batch_tokens=16).engine


def test_hidden_after_keeps_the_order_of_prefixes(engine):
    prefixes = [np.array([5, 6, 7]), np.array([], dtype=np.int64), np.array([8]), np.arange(4, 40)]
    found, _ = engine.hidden_after(prefixes)
    for row, prefix in zip(found, prefixes, strict=True):
        words = torch.tensor([END, *prefix.tolist()])[-16:]  # the block size
        with torch.no_grad():
            expected = engine.model(words[None])[0, -1]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("skip", [0, 3, 20])
@pytest.mark.parametrize("length", [5, 16, 17, 30, 60])
def test_inputs_before_match_the_scores(engine, length, skip):
    document = np.append(np.arange(4, 3 + skip + length) % 60 + 4, END)
    places = skip + np.array([0, 2, length // 2, length - 1])
    request = Document(document, skip, places, top=3, ranks=True)
    (scores,) = engine.start_scoring([request])()
    inputs = [ids for ids, _ in engine.inputs_before(document, places, skip)]
    for number, place in enumerate(places):
        with torch.no_grad():
            log_probs = engine.model.log_probs(torch.from_numpy(inputs[number])[None])[0, -1]
        best, target = log_probs.topk(3), document[place]
        assert -log_probs[target].item() == pytest.approx(scores.nll[place - skip], abs=1e-5)
        assert [token for token, _ in scores.top[number]] == best.indices.tolist()
        values = [value for _, value in scores.top[number]]
        assert values == pytest.approx(best.values.tolist(), abs=1e-5)
        assert scores.ranks[number] == (log_probs > log_probs[target]).sum() + 1


def test_scores_no_documents(engine):
    assert engine.nll([]) == []
