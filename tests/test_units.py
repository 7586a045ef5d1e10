"""Nats to perplexities and bits, for every number there is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.units import LARGEST_LOSS, bits, perplexity


@given(st.floats(max_value=LARGEST_LOSS, exclude_max=True))
def test_perplexity_is_exp_of_nats(nats):
    assert perplexity(nats) == math.exp(nats)


@given(st.floats(min_value=LARGEST_LOSS))
def test_beyond_all_numbers_it_is_infinite_and_never_an_error(nats):
    assert perplexity(nats) == math.inf


def test_what_is_no_number_stays_none():
    assert math.isnan(perplexity(math.nan)) and math.isnan(bits(math.nan))


@pytest.mark.parametrize("size", [2, 8, 50_000])
def test_a_uniform_choice_of_n_has_perplexity_n_and_its_bits(size):
    assert perplexity(math.log(size)) == pytest.approx(size)
    assert 2 ** bits(math.log(size)) == pytest.approx(size)
