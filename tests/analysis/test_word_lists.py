"""Wins and losses against a reference: by mean difference, with enough occurrences."""

import numpy as np

from zipflm.analysis.word_lists import word_lists

COUNTS = np.array([0, 0, 9, 9, 40, 30, 20])


def test_words_are_ordered_by_mean_difference() -> None:
    ids = np.array([4, 4, 5, 5, 6, 6])
    nll = np.array([1.0, 1.0, 3.0, 5.0, 2.0, 2.0])
    reference = np.array([4.0, 4.0, 3.0, 3.0, 2.0, 2.0])
    lists = word_lists(ids, COUNTS, nll, reference, min_tokens=2)
    assert [(w.word_id, w.difference) for w in lists.wins] == [(4, -3.0)]
    assert [(w.word_id, w.difference) for w in lists.losses] == [(5, 1.0)]
    assert (lists.wins[0].train_count, lists.wins[0].tokens) == (40, 2)


def test_rare_occurrences_are_passed_over() -> None:
    lists = word_lists(np.array([4, 5, 5]), COUNTS, np.zeros(3), np.ones(3), min_tokens=2)
    assert [w.word_id for w in lists.wins] == [5]


def test_a_model_against_itself_wins_and_loses_nothing() -> None:
    losses = np.array([1.0, 2.0, 3.0])
    lists = word_lists(np.array([4, 5, 6]), COUNTS, losses, losses, min_tokens=1)
    assert lists.wins == lists.losses == ()
