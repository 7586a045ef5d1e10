"""The search for words in pieces."""

import pytest

from zipflm.language.next_words import most_likely_words


def test_it_is_exact_for_every_k(bpe):
    (many,) = most_likely_words(bpe.engine, bpe.reader, [bpe.reader.prefix("ba")], 20)
    (few,) = most_likely_words(bpe.engine, bpe.reader, [bpe.reader.prefix("ba")], 5)
    assert [word.word for word in few] == [word.word for word in many[:5]]
    assert len({word.word for word in many}) == len(many) == 20


def test_a_word_has_the_probability_that_scoring_gives_it(bpe):
    for word in bpe.next_words("de ba", 15):
        if word.word not in ("<s>", "</s>", "<unk>", "<pad>") and "madeup" not in word.word:
            scored = bpe.score(word.word, prefix="de ba").words[0]
            assert word.logprob == pytest.approx(scored.logprob, abs=1e-5)
