"""Groups of independent texts: order, scores and read-ahead."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loaded_models import loaded

from zipflm.evaluation.documents import Document
from zipflm.language.engine import scored_documents


@pytest.fixture(scope="module")
def lm(word_data):
    return loaded(word_data)


def texts_of(lm, number):
    words = lm.vocabulary.words[4:]
    draw = np.random.default_rng(0)
    return [
        lm.reader.line(" ".join(draw.choice(words, draw.integers(1, 9)))) for _ in range(number)
    ]


@pytest.mark.parametrize("prefix", ["", "some prefix"])
def test_scores_match_a_single_batch(lm, prefix):
    engine = replace(lm.engine, batch_tokens=32)
    before, texts = lm.reader.prefix(prefix), texts_of(lm, 100)
    groups = [*scored_documents(engine, texts, before)]
    assert len(groups) > 3
    found = [document for group in groups for document in group]
    assert all(document.text is text for document, text in zip(found, texts, strict=True))
    documents = [np.concatenate([before, text.ids]) for text in texts]
    for document, nll in zip(found, lm.engine.nll(documents, len(before)), strict=True):
        np.testing.assert_allclose(document.nll, nll, rtol=1e-5, atol=1e-5)


def test_reads_one_group_ahead(lm):
    engine = replace(lm.engine, batch_tokens=16)
    texts, given = texts_of(lm, 200), 0
    reading = iter(texts)
    for group in scored_documents(engine, reading, lm.reader.prefix("")):
        given += len(group)
        ahead = len(texts) - given - reading.__length_hint__()
        # A text has at least two tokens; a group ends with the text that fills four batches.
        assert ahead <= 4 * 16 // 2
        assert ahead > 0 or given == len(texts)
    assert given == len(texts)


def test_no_texts(lm):
    assert [*scored_documents(lm.engine, [], lm.reader.prefix(""))] == []


@pytest.mark.gpu
def test_starting_does_not_block(word_data):
    lm = loaded(word_data, device="cuda")
    documents = [text.ids for text in texts_of(lm, 64)]
    expected = lm.engine.nll(documents)  # warm up
    torch.cuda._sleep(2_000_000_000)  # about a second
    asleep = torch.cuda.Event()
    asleep.record()
    result = lm.engine.start_scoring([Document(ids) for ids in documents])
    assert not asleep.query()
    for found, wanted in zip(result(), expected, strict=True):
        np.testing.assert_array_equal(found.nll, wanted)
