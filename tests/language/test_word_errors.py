import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.language.word_errors import Edits, edits, word_errors

words = st.lists(st.sampled_from("abcd"), max_size=12)


def textbook(reference, hypothesis):
    """The whole table, cell by cell."""
    table = [[0] * (len(hypothesis) + 1) for _ in range(len(reference) + 1)]
    for i in range(len(reference) + 1):
        for j in range(len(hypothesis) + 1):
            if i == 0 or j == 0:
                table[i][j] = i + j
            else:
                table[i][j] = min(
                    table[i - 1][j] + 1,
                    table[i][j - 1] + 1,
                    table[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1]),
                )
    return table[-1][-1]


@given(words, st.lists(words, max_size=6))
def test_distances_are_those_of_the_textbook(reference, hypotheses):
    expected = [textbook(reference, hypothesis) for hypothesis in hypotheses]
    assert word_errors(reference, hypotheses) == expected


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_references_may_be_longer_than_a_machine_word(length):
    draw = random.Random(length)
    reference = draw.choices("abcdef", k=length)
    hypotheses = [draw.choices("abcdef", k=draw.randint(0, 2 * length)) for _ in range(5)]
    expected = [textbook(reference, hypothesis) for hypothesis in hypotheses]
    assert word_errors(reference, hypotheses) == expected


@given(words, words)
def test_kinds_of_errors_add_up_to_the_distance_and_to_the_lengths(reference, hypothesis):
    found = edits(reference, hypothesis)
    assert found.errors == textbook(reference, hypothesis)
    assert len(hypothesis) - len(reference) == found.insertions - found.deletions
    assert min(found.substitutions, found.deletions, found.insertions) >= 0


def test_each_kind_of_error_is_told():
    assert edits(["a", "b"], ["a", "c"]) == Edits(1, 0, 0)
    assert edits(["a", "b"], ["a"]) == Edits(0, 1, 0)
    assert edits(["a", "b"], ["a", "b", "b"]) == Edits(0, 0, 1)
    assert edits([], []) == Edits()
    assert Edits(1, 2, 3) + Edits(1, 0, 0) == Edits(2, 2, 3)


def test_a_hundred_hypotheses_of_twenty_words_take_milliseconds():
    """10,000 such utterances must not take more than a minute or two, whatever the machine."""
    draw = random.Random(1)
    reference = draw.choices("abcdefghij", k=20)
    hypotheses = []
    for _ in range(100):
        hypothesis = list(reference)
        for place in draw.sample(range(20), 3):
            hypothesis[place] = draw.choice("xyz")
        hypotheses.append(hypothesis)
    start = time.process_time()
    for _ in range(20):
        word_errors(reference, hypotheses)
    assert (time.process_time() - start) / 20 < 0.02
