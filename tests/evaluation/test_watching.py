"""Whoever watches hears of everything that is scored, and of nothing else."""

import pytest

from zipflm.evaluation.scoring import named, tell, watched_by


def test_the_innermost_watcher_hears_and_the_outer_one_comes_back():
    outer, inner = [], []
    with watched_by(lambda *news: outer.append(news)):
        tell(1, 10)
        with watched_by(lambda *news: inner.append(news)), named("inside"):
            tell(2, None)
        tell(3, 10)
    tell(4, 10)
    assert outer == [("scoring", 1, 10), ("scoring", 3, 10)] and inner == [("inside", 2, None)]


def test_a_watcher_can_end_the_scoring_and_is_gone_then():
    def refuse(*_):
        raise KeyError

    with pytest.raises(KeyError), watched_by(refuse), named("x"):
        tell(1, 1)
    tell(1, 1)
