"""Student's t: printed tables, and agreement with a simulation."""

import numpy as np
import pytest

from zipflm.studies.statistics import quantile, two_sided_p


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (29, 2.045)],
)
def test_quantiles_are_those_of_printed_tables(degrees: int, expected: float) -> None:
    assert quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_with_many_degrees_it_is_the_normal_distribution() -> None:
    assert quantile(600) == pytest.approx(1.96, abs=5e-3)


def test_p_falls_from_one_as_t_leaves_zero_to_either_side() -> None:
    t = np.array([0.0, 0.5, 1.0, 4.0, 40.0])
    for degrees in (1, 2, 5, 8):
        p = two_sided_p(t, degrees)
        assert p[0] == pytest.approx(1.0) and (np.diff(p) < 0).all() and (p >= 0).all()
        assert p.tolist() == two_sided_p(-t, degrees).tolist()


def test_p_is_how_often_chance_goes_so_far() -> None:
    random = np.random.default_rng(0)
    samples = random.normal(size=(20_000, 6))
    t = samples.mean(axis=1) / (samples.std(axis=1, ddof=1) / np.sqrt(6))
    p = two_sided_p(t, 5)
    for level in (0.05, 0.5, 0.9):
        assert (p < level).mean() == pytest.approx(level, abs=0.012)
