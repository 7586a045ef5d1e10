"""The words of a scored text."""

import numpy as np

from zipflm.language.text import WordStatistics, nll_per_word


def test_bands_start_at_the_cutoffs(adp):
    statistics = WordStatistics.of(adp.vocabulary, (10, 50))
    assert [statistics.bands[i] for i in (0, 9, 10, 49, 50, 79)] == [0, 0, 1, 1, 2, 2]
    assert (WordStatistics.of(adp.vocabulary, ()).bands == 0).all()


def word_in_pieces(lm):
    names = (a + b for a in "bdfgklmnps" for b in ("a", "e", "ila", "oro", "u", "an", "i"))
    return next(name for name in names if len(lm.reader.line(name).ids) > 2)


def test_sums_losses_of_pieces(bpe):
    encoded = bpe.reader.line(word_in_pieces(bpe))
    nll = np.arange(len(encoded.ids), dtype=np.float32)
    assert nll_per_word(encoded, nll).tolist() == [sum(range(len(nll) - 1)), len(nll) - 1]


def test_count_is_that_of_the_rarest_piece(bpe):
    word, _ = bpe.score(word_in_pieces(bpe)).words
    ids = bpe.reader.line(word.word).ids[:-1]
    assert word.count == bpe.vocabulary.counts[ids].min()


def test_repr(adp):
    assert repr(adp.score("ba de")).startswith("ScoredText(3 words, logprob=-")
