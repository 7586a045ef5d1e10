"""Sums of rows by target, on a GPU or in Triton's interpreter."""

import pytest
import torch
from nll_problems import DEVICE
from numerics import assert_close

triton = pytest.importorskip("triton")

from zipflm.kernels import softmax_triton  # noqa: E402
from zipflm.kernels.softmax_triton import subtract_targets  # noqa: E402


@pytest.mark.parametrize(
    ("rows", "words"),
    [(1, 1), (16, 1), (17, 2), (17, 200), (100, 3), (100, 200), (300, 1), (300, 2)],
)
def test_subtracts_every_row_once_in_fixed_order(monkeypatch, rows, words):
    """Including targets that span several pieces."""
    monkeypatch.setattr(softmax_triton, "_PIECE", 16)
    hidden = torch.randn(rows, 264, device=DEVICE)
    targets = torch.randint(words, (rows,), device=DEVICE)
    miss = torch.rand(rows, device=DEVICE)
    start = torch.randn(words, 264, device=DEVICE)
    found = []
    for _ in range(2):
        ours = start.clone()
        subtract_targets(ours, hidden, miss, targets)
        found.append(ours)
    assert torch.equal(*found)
    each = miss.double().unsqueeze(1) * hidden.double()
    assert_close(found[0], start.double().index_add(0, targets, -each), 1e-6)
