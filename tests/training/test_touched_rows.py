"""Rows of sparse gradients: every row once, with or without asking how many there are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from zipflm.training import touched_rows
from zipflm.training.touched_rows import added_up, touched, values

WAYS = [added_up, touched_rows._added_up_without_waiting]
"""On a CPU, and on a device."""


def gradient(rows, num_rows=20, width=3):
    """Whole numbers, whose sums are exact in any order."""
    entries = torch.arange(len(rows) * width).view(-1, width) % 5 - 2.0
    indices = torch.tensor([rows], dtype=torch.int64)
    size = num_rows, width
    return torch.sparse_coo_tensor(indices, entries, size, check_invariants=True)


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.integers(0, 19), max_size=30))
def test_a_row_is_added_up_and_named_by_one_entry(way, rows):
    grad = gradient(rows)
    found = way(grad)
    assert torch.equal(found.to_dense(), grad.to_dense())
    assert torch.equal(values(found).square().sum(), grad.to_dense().square().sum())
    named, grads = touched(found)
    assert set(named.tolist()) == set(rows)
    assert torch.equal(grads, grad.to_dense()[named])


@pytest.mark.parametrize("way", WAYS)
def test_adding_up_twice_changes_nothing(way):
    grad = gradient([3, 7, 3, 3, 0])
    once, twice = way(grad), way(way(grad))
    assert torch.equal(once.to_dense(), twice.to_dense())
    assert torch.equal(values(once).norm(), values(twice).norm())


def test_what_is_not_sparse_is_taken_whole():
    dense = torch.randn(3, 4)
    assert values(dense) is dense


def test_nothing_waits_for_the_device():
    """Pretended tensors have no values to ask for."""
    with FakeTensorMode():
        named, entries = torch.zeros(5, dtype=torch.int64), torch.zeros(5, 3)
        rows, sums = touched_rows._sums_by_row(named, entries)
        assert (rows.shape, sums.shape) == ((5,), (5, 3))
