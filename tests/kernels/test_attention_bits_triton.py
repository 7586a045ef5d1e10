"""Which weights of attention are dropped: at the right rate, and none of them tells of another."""

import math

import pytest
import torch
from nll_problems import DEVICE

triton = pytest.importorskip("triton")

from zipflm.kernels.attention_bits_triton import keep_mask  # noqa: E402

THRESHOLD = 6554


def a_seed(number=3):
    return torch.tensor([number], device=DEVICE)


HEADS, LENGTH = 12, 256


@pytest.fixture(scope="module")
def dropped():
    """[3 seeds, heads, rows, columns], with mean 0 and variance 1."""
    masks = [keep_mask(a_seed(seed), HEADS, LENGTH, THRESHOLD) for seed in (1, 2, 1 << 61)]
    rate = THRESHOLD / 65_536
    return ((~torch.stack(masks)).float() - rate) / (rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("along", [(), (0,), (1,), (2,), (3,), (1, 3), (1, 2)], ids=str)
def test_the_share_that_is_dropped_is_right(dropped, along):
    """Overall, and of each seed, head, row, column, row of a head, column of a head."""
    others = [axis for axis in range(4) if axis not in along]
    means = dropped.mean(others) * math.prod(dropped.shape[axis] for axis in others) ** 0.5
    # The largest of some thousand standard normal numbers is about 4.
    assert means.abs().max() < 5
    assert means.numel() < 100 or abs(means.square().mean() - 1) < 6 * (2 / means.numel()) ** 0.5


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 32, 63, 64, 65, 127, 128, 129, 192])
@pytest.mark.parametrize("axis", ["columns", "rows"])
def test_columns_and_rows_know_nothing_of_each_other(dropped, axis, distance):
    """Columns at a distance of 64 share a hash."""
    axis = {"columns": 3, "rows": 2}[axis]
    length = LENGTH - distance
    products = dropped.narrow(axis, 0, length) * dropped.narrow(axis, distance, length)
    assert abs(products.mean()) * products.numel() ** 0.5 < 5


def test_neither_do_heads_nor_seeds(dropped):
    for products in (dropped[:, 1:] * dropped[:, :-1], dropped[1:] * dropped[:-1]):
        assert abs(products.mean()) * products.numel() ** 0.5 < 5


def test_nor_any_two_columns_of_all_rows(dropped):
    rows = dropped.flatten(0, 2)
    correlations = rows.T @ rows / len(rows) ** 0.5
    correlations.fill_diagonal_(0)
    # 32,640 pairs; the largest of as many standard normal numbers is about 4.2.
    assert correlations.abs().max() < 5.5
    assert 0.95 < correlations.square().sum() / (LENGTH * (LENGTH - 1)) < 1.05


def test_four_corners_of_a_rectangle_know_nothing_of_each_other(dropped):
    """Any three do not tell the fourth, as they would if keys and columns were merely added."""
    for rows, columns in ((1, 1), (5, 64), (64, 3), (17, 100)):
        a, b = dropped[:, :, rows:], dropped[:, :, :-rows]
        corners = a[..., columns:] * a[..., :-columns] * b[..., columns:] * b[..., :-columns]
        assert abs(corners.mean()) * corners.numel() ** 0.5 < 6


def test_a_mask_depends_on_the_length_only_where_it_ends():
    """The first head's rows are numbered alike."""
    short, long = (keep_mask(a_seed(), 1, length, THRESHOLD)[0] for length in (40, 200))
    assert torch.equal(long[:40, :40], short)
