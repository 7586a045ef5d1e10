"""Sums of rows by target, in Triton's interpreter unless there is a GPU."""

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
def test_every_row_is_taken_from_its_target_once_and_in_one_order(monkeypatch, rows, words):
    """Also of targets that go on over two pieces, and over more than are added at once."""
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
