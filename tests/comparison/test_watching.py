"""Members are watched closely enough for a curve, without being changed by it."""

from dataclasses import replace

import pytest

from zipflm.comparison.watching import FEWEST_POINTS, watched, watched_alike
from zipflm.config import Config
from zipflm.presets import DATASETS, preset


def with_updates(config: Config, updates: int, every: int = 2000) -> Config:
    training = replace(config.training, max_updates=updates, validate_every=every)
    return replace(config, training=training)


@pytest.mark.parametrize("updates", [3, 7, 8, 100, 2500])
@pytest.mark.parametrize("every", [0, 2000])
def test_every_curve_gets_its_points(updates: int, every: int) -> None:
    training = watched(with_updates(preset("tiny"), updates, every), ()).training
    assert updates // training.validate_every >= min(updates, FEWEST_POINTS)
    assert training.validate_share == 0.1


def test_what_is_watched_enough_or_as_the_user_wants_stays_as_it_is() -> None:
    often = with_updates(preset("tiny"), 100, 5)
    assert watched(often, ()) == often
    seldom = with_updates(preset("tiny"), 100)
    assert watched(seldom, ["training.validate_every=2000"]) == seldom


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "toy"])
def test_presets_have_points_for_a_curve(dataset: str) -> None:
    training = preset(dataset).training
    assert training.max_updates // training.validate_every >= FEWEST_POINTS


def test_watching_is_all_that_may_differ() -> None:
    one = with_updates(preset("tiny"), 100)
    other = watched(one, ())
    assert one != other and watched_alike(one, other) == other
    longer = with_updates(other, 101)
    assert watched_alike(one, longer) != longer
