"""What a study says about its rows follows from their losses, whichever row is asked first."""

from itertools import permutations

import pytest
from analysis import example_study as example


def test_a_difference_read_backwards_is_the_same_difference() -> None:
    study = example.study()
    for label, other in permutations(example.LABELS, 2):
        found, back = study.difference(label, other), study.difference(other, label)
        assert found is not None and back is not None
        assert (found.label, found.other) == (label, other)
        assert found.nats.estimate == -back.nats.estimate
        assert (found.nats.low, found.nats.high) == (-back.nats.high, -back.nats.low)
        assert not (study.is_better(label, other) and study.is_better(other, label))
    assert study.difference("ADP-T", "nobody") is None


def test_a_difference_is_that_of_the_mean_losses() -> None:
    study = example.study()
    found = study.difference("ADP-T", "SM")
    assert found is not None
    ours, theirs = (example.total_loss(study, label) for label in ("ADP-T", "SM"))
    assert found.nats.estimate == pytest.approx(ours - theirs)


def test_rows_are_ranked_by_perplexity_and_those_level_with_the_best_come_first() -> None:
    study = example.study()
    perplexities = [study.headline(row).mean for row in study.ranked]
    assert perplexities == sorted(perplexities)
    best, *others = study.ranked
    level = study.level_with_best
    assert level[0] == best.label
    for row in others:
        assert (row.label in level) != study.is_better(best.label, row.label)
