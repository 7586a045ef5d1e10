"""What a study says about its rows follows from their losses, whichever row is asked first."""

from itertools import permutations

import pytest
from studies import example_study as example


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
