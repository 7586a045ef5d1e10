"""Search for the most likely words of subword models."""

import tracemalloc
from types import SimpleNamespace

import pytest
from loaded_models import loaded

from zipflm.config import PLAIN
from zipflm.data.vocabulary import Vocabulary
from zipflm.language.next_words import most_likely_words


def test_results_do_not_depend_on_k(bpe):
    (many,) = most_likely_words(bpe.engine, bpe.reader, [bpe.reader.prefix("ba")], 20)
    (few,) = most_likely_words(bpe.engine, bpe.reader, [bpe.reader.prefix("ba")], 5)
    assert [word.word for word in few] == [word.word for word in many[:5]]
    assert len({word.word for word in many}) == len(many) == 20


def test_probabilities_match_scoring(bpe):
    for word in bpe.next_words("de ba", 15):
        if word.word not in ("<s>", "</s>", "<unk>", "<pad>") and "madeup" not in word.word:
            scored = bpe.score(word.word, prefix="de ba").words[0]
            assert word.logprob == pytest.approx(scored.logprob, abs=1e-5)


def test_memory_of_a_wide_search():
    pieces = {f"w{n}{mark}": 1 for n in range(300) for mark in ("", "@@")}
    vocabulary = Vocabulary.from_counts(pieces, min_count=1)
    data = SimpleNamespace(vocabulary=vocabulary, codes=None, splitting=PLAIN)
    lm = loaded(data, "BPE", sharpness=0.1)  # nearly uniform, so all prefixes are expanded
    tracemalloc.start()
    try:
        found = lm.next_words("w1", 450)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({word.word for word in found}) == 450
    assert peak < 20 * len(vocabulary) * 300
