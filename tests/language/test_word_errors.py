import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.language.tuning import Edits, edits, word_errors

words = st.lists(st.sampled_from("abcd"), max_size=12)


def textbook(reference, hypothesis):
    """Errors, deletions and insertions by dynamic programming, with the fewest gaps."""
    row = [(place, place, 0) for place in range(len(reference) + 1)]
    for number, word in enumerate(hypothesis, start=1):
        above, row = row, [(number, 0, number)]
        for place, expected in enumerate(reference):
            errors, deletions, insertions = above[place]
            best = (errors + (word != expected), deletions, insertions)
            errors, deletions, insertions = above[place + 1]
            best = min(best, (errors + 1, deletions, insertions + 1))
            errors, deletions, insertions = row[-1]
            row.append(min(best, (errors + 1, deletions + 1, insertions)))
    return row[-1]


def require_textbook(reference, hypothesis):
    errors, deletions, insertions = textbook(reference, hypothesis)
    assert word_errors(reference, [hypothesis]) == [errors]
    expected = Edits(errors - deletions - insertions, deletions, insertions)
    assert edits(reference, hypothesis) == expected


@given(words, words)
def test_matches_dynamic_programming(reference, hypothesis):
    require_textbook(reference, hypothesis)


@pytest.mark.parametrize("length", [64, 200])
def test_long_references(length):
    draw = random.Random(length)
    reference = draw.choices(["one", "two", "three"], k=length)
    require_textbook(reference, draw.choices(["one", "two", "four"], k=draw.randint(0, 2 * length)))


def test_edits_add_up():
    assert Edits(1, 2, 3) + Edits(1, 0, 0) == Edits(2, 2, 3)
