"""Sums over scored tokens, whatever the batches."""

import math

import pytest
import torch

from zipflm.data.batches import Batch
from zipflm.evaluation.perplexity import Scores, evaluate


def constant(words, targets, scored):
    """A model that gives every target its id as nll."""
    return torch.where(scored, targets.float(), 0.0)


def batch(targets, scored):
    targets = torch.tensor([targets])
    return Batch(targets, targets, torch.tensor([scored]))


def test_only_scored_tokens_count():
    batches = [batch([1, 2, 3], [True, False, True]), batch([5, 7], [False, True])]
    scores = evaluate(constant, batches, "cpu")
    assert scores == Scores(nll=11.0, tokens=3, words=3)
    assert scores.loss == pytest.approx(11 / 3)
    assert scores.perplexity == pytest.approx(math.exp(11 / 3))


def test_pieces_add_up_to_words():
    ends_word = torch.tensor([True, True, False, True])
    scores = evaluate(constant, [batch([2, 1, 2, 3], [True] * 4)], "cpu", ends_word)
    assert (scores.tokens, scores.words) == (4, 2)
    assert scores.perplexity == pytest.approx(math.exp(8 / 2))


def test_scores_of_parts_add_up():
    assert Scores(1.0, 2, 1) + Scores(3.0, 4, 2) == Scores(4.0, 6, 3)


def test_nothing_scored_is_no_division_by_zero():
    assert Scores(0.0, 0, 0).perplexity == 1.0
    assert Scores(1e6, 1, 1).perplexity == math.inf
