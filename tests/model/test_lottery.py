import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.model.lazy_log_probs import Groups
from zipflm.model.lottery import bounds, draw_places

CPU = torch.device("cpu")


@settings(deadline=None)
@given(
    st.floats(0.05, 20),
    st.floats(0, 30),
    st.sets(st.integers(3, 11)),
    st.integers(0, 10**6),
)
def test_the_mass_of_a_tail_lies_within_its_bounds(temperature, spread, forbidden, seed):
    torch.manual_seed(seed)
    mask = torch.zeros(12, dtype=torch.bool)
    mask[list(forbidden)] = True
    lower, upper = bounds(Groups((0, 3, 12), mask), temperature, CPU)
    scores = (spread * torch.randn(9, dtype=torch.float64)).log_softmax(0) / temperature
    mass = scores.masked_fill(mask[3:], -torch.inf).logsumexp(0)
    assert lower[1] - 1e-9 <= mass <= upper[1] + 1e-9
    assert lower[0] == upper[0] == 0


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_both_bounds_can_be_reached(temperature):
    """By a tail in which one word has everything, and by one in which all are alike."""
    lower, upper = bounds(Groups((0, 3, 12)), temperature, CPU)
    alike = torch.full((9,), -math.log(9), dtype=torch.float64) / temperature
    reached = sorted([0.0, alike.logsumexp(0).item()])
    assert [lower[1].item(), upper[1].item()] == pytest.approx(reached)


def test_at_temperature_one_nothing_is_uncertain():
    lower, upper = bounds(Groups((0, 3, 12)), 1.0, CPU)
    assert lower.tolist() == upper.tolist() == [0, 0]


def test_a_tail_in_which_nothing_is_allowed_has_no_mass():
    lower, upper = bounds(Groups((0, 3, 12), torch.arange(12) > 2), 0.7, CPU)
    assert lower[1] == upper[1] == -math.inf


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.5, 1 - 2**-53])
def test_no_number_draws_a_place_without_probability(uniform):
    scores = torch.full((1, 9), -torch.inf)
    scores[0, 2] = scores[0, 6] = 0.0
    place = draw_places(scores, torch.tensor([uniform], dtype=torch.float64))
    assert place.item() in (2, 6)


def test_places_have_the_share_of_numbers_that_is_theirs():
    scores = torch.tensor([0.5, 0.125, 0.375]).log()
    numbers = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    places = draw_places(scores.expand(800, 3), numbers)
    assert places.bincount().tolist() == [400, 100, 300]
