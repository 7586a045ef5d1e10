"""Scoring of several texts together."""

import numpy as np
import pytest
import torch

from zipflm.evaluation.documents import Document

TEXTS = ["ba be", "bila boro bu ban", "ka\nke ki", "ba " * 40]


def ids_of(model, text):
    return model.reader.text(text).ids


def scores_of(model, *documents):
    return model.engine.start_scoring(documents)()


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_batched_scores_match_single_scores(models, name):
    model = models[name]
    scores = scores_of(model, *(Document(ids_of(model, text)) for text in TEXTS))
    for text, found in zip(TEXTS, scores, strict=True):
        expected = model.engine.nll([ids_of(model, text)])[0]
        np.testing.assert_allclose(found.nll, expected, atol=1e-5)


def test_prefix_is_context(words):
    ids = ids_of(words, "ba be bila boro")
    whole, after, open_end = scores_of(
        words, Document(ids), Document(ids, skip=2), Document(ids[:-1])
    )
    np.testing.assert_allclose(after.nll, whole.nll[2:], atol=1e-5)
    np.testing.assert_allclose(open_end.nll, whole.nll[:-1], atol=1e-5)


def test_alternatives_and_ranks_match_the_distribution(words):
    ids = ids_of(words, TEXTS[1])
    asked = np.array([1, 3])
    _, found = scores_of(
        words, Document(ids_of(words, "ba")), Document(ids, asked=asked, top=4, ranks=True)
    )
    with torch.inference_mode():
        log_probs = words.engine.model.log_probs(torch.tensor([[2, *ids]]))[0]
    for number, place in enumerate(asked):
        order = log_probs[place].argsort(descending=True)
        assert [token for token, _ in found.top[number]] == order[:4].tolist()
        assert found.ranks[number] == order.tolist().index(ids[place]) + 1
        assert found.top[number][0][1] == pytest.approx(log_probs[place].max().item(), abs=1e-5)


def test_empty_batches(words):
    nothing = np.zeros(0, dtype=np.int64)
    empty, one = scores_of(words, Document(nothing), Document(ids_of(words, "ba")))
    assert len(empty.nll) == 0 and len(one.nll) == 2
    assert len(scores_of(words, Document(nothing))[0].nll) == 0


def test_model_without_finite_numbers(words, monkeypatch):
    output = words.engine.model.output
    monkeypatch.setattr(output, "nll", lambda hidden, targets: targets * torch.nan)
    with pytest.raises(ValueError, match="diverged"):
        scores_of(words, Document(ids_of(words, "ba")))
