"""Words on which models differ significantly."""

import numpy as np

from zipflm.studies.word_lists import MIN_BLOCKS, MIN_TOKENS, discoveries, word_lists

COUNTS = np.array([0, 0, 9, 9, 40, 30, 20])


def text(words, per_block=2, blocks=10):
    """Ids of `words` words, each `per_block` times in every block, and the block of each id."""
    ids = np.tile(np.repeat(np.arange(4, 4 + words), per_block), blocks)
    return ids, np.repeat(np.arange(blocks), words * per_block)


def test_significant_words_are_ordered_by_difference():
    ids, block = text(3)
    random = np.random.default_rng(0)
    nll = 5 + random.normal(0, 0.1, len(ids)) - 3.0 * (ids == 4) + 1.0 * (ids == 5)
    lists = word_lists(ids, COUNTS, nll, np.full(len(ids), 5.0), block)
    assert [w.word_id for w in lists.wins] == [4]
    assert [w.word_id for w in lists.losses] == [5]
    assert lists.wins[0].difference < -2.8 and lists.wins[0].p < 0.001
    assert (lists.wins[0].train_count, lists.wins[0].tokens) == (40, 20)
    assert (lists.tested, lists.significant) == (3, 2)


def test_rare_words_are_not_tested():
    random = np.random.default_rng(0)
    for per_block, blocks in ((1, MIN_TOKENS - 1), (MIN_TOKENS, MIN_BLOCKS - 1)):
        ids, block = text(1, per_block, blocks)
        nll = 2 + random.normal(0, 0.01, len(ids))
        lists = word_lists(ids, COUNTS, nll, np.full(len(ids), 5.0), block)
        assert lists.tested == 0 and lists.wins == ()


def test_correlated_occurrences_are_not_significant():
    """Occurrences in one block are correlated and count as one observation."""
    ids, block = text(1, per_block=20)
    random = np.random.default_rng(1)
    effect = random.normal(0, 1.0, 10)  # shared by all occurrences in a block
    nll = 5 + effect[block] + random.normal(0, 0.01, len(ids))
    lists = word_lists(ids, COUNTS, nll, np.full(len(ids), 5.0), block)
    assert lists.tested == 1 and lists.significant == 0


def test_false_discovery_rate():
    """Every tenth of a thousand words differs."""
    random = np.random.default_rng(2)
    counts = np.full(1004, 50)
    false = found = 0
    for _ in range(5):
        ids, block = text(1000, per_block=2, blocks=20)
        is_real = ids % 10 == 0
        nll = random.normal(0, 1, len(ids)) + 1.5 * is_real
        lists = word_lists(ids, counts, nll, np.zeros(len(ids)), block, size=1000)
        reported = [word.word_id for word in (*lists.wins, *lists.losses)]
        false += sum(word % 10 != 0 for word in reported)
        found += len(reported)
    assert found > 400 and false / found < 0.08


def test_example_of_benjamini_and_hochberg():
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262]
    p += [0.5719, 0.6528, 0.7590, 1.0]
    assert discoveries(np.array(p)).sum() == 4
    assert not discoveries(np.zeros(0)).any()
