import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.batches import Permutation


def order(size, *key, label=0):
    places = np.arange(size)
    return Permutation(*key)(places, size, np.full_like(places, label))


@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 2**40))
def test_every_number_has_one_place(size, key, label):
    assert np.sort(order(size, key, label=label)).tolist() == list(range(size))


def test_places_are_asked_for_one_by_one_and_of_many_orders_at_once():
    random = Permutation(3, 1)
    whole = {(size, label): order(size, 3, 1, label=label) for size in (5, 900) for label in (0, 9)}
    asked = [(place, size, label) for size, label in whole for place in range(size)]
    np.random.default_rng(0).shuffle(asked)
    places, sizes, labels = (np.array(column) for column in zip(*asked, strict=True))
    expected = [whole[size, label][place] for place, size, label in asked]
    assert random(places, sizes, labels).tolist() == expected
    assert random(places[:1], sizes[:1], labels[:1]).tolist() == expected[:1]


def test_all_orders_of_four_numbers_come_about_equally_often():
    tries = 4800
    found = Counter(tuple(order(4, key)) for key in range(tries))
    expected = tries / 24
    assert set(found) == set(itertools.permutations(range(4)))
    assert max(abs(number - expected) for number in found.values()) < 0.4 * expected
    assert {tuple(order(4, 5, label=label)) for label in range(tries)} == set(found)


@pytest.mark.parametrize("size", [1000, 1 << 16, (1 << 16) + 1])
def test_neighbours_and_places_have_nothing_to_do_with_each_other(size):
    """As far as five standard deviations of a true shuffle tell."""
    for key in range(8):
        found = order(size, key, 2)
        assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 5 / size**0.5
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / size**0.5
        # A shuffle leaves one number in its place on average, and repeats a quarter of all steps.
        assert np.count_nonzero(found == np.arange(size)) < 10
        assert len(np.unique(np.diff(found))) > 0.68 * size


def test_orders_of_other_keys_and_labels_are_others():
    orders = [order(1000, 1, 2), order(1000, 1, 3), order(1000, 2, 2), order(1000, 1, 2, label=1)]
    for one, other in itertools.combinations(orders, 2):
        assert np.count_nonzero(one == other) < 10


def test_a_place_among_a_trillion_is_found_at_once():
    size = 10**12
    places = np.array([0, 1, size - 1])
    numbers = Permutation(4)(places, size, np.zeros_like(places))
    assert len(set(numbers.tolist())) == 3
    assert (numbers < size).all()
