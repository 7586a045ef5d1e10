"""The row kernels, on a GPU or in Triton's interpreter."""

import pytest
import torch
from nll_problems import DEVICE
from numerics import assert_close
from torch.nn import functional as F

triton = pytest.importorskip("triton")

from zipflm.kernels.softmax_triton import row_gradient, row_lse  # noqa: E402

# (words, columns): within one block of 4096, exactly one, and a little more than two.
SIZES = [(9, 9), (131, 256), (4096, 4096), (9001, 9050)]


def rows_of(words, columns, mean=0.0):
    """Logits around `mean`, padded with 0."""
    logits = torch.zeros(5, columns, device=DEVICE)
    logits[:, :words] = mean + 3 * torch.randn(5, words, device=DEVICE)
    return logits, torch.randint(words, (5,), device=DEVICE)


def expected_gradient(logits, words, targets, grad):
    exact = logits[:, :words].double()
    return (exact.softmax(-1) - F.one_hot(targets, words)) * grad.double().unsqueeze(1)


@pytest.mark.parametrize("mean", [0.0, -60.0, 60.0])
@pytest.mark.parametrize("size", SIZES)
def test_log_sum_exp_ignores_padding(size, mean):
    logits, _ = rows_of(*size, mean)
    expected = logits[:, : size[0]].double().logsumexp(-1)
    assert_close(row_lse(logits, size[0]), expected, 1e-6)


def test_log_sum_exp_with_infinite_logits():
    logits, _ = rows_of(9001, 9050)
    logits[:, 1:] = float("-inf")
    assert_close(row_lse(logits, 9001), logits[:, 0], 1e-6)


# Padding has logits of 0, far above a log-sum-exp of -100.
@pytest.mark.parametrize("mean", [0.0, -100.0])
@pytest.mark.parametrize("scale", [1, 65_536])
@pytest.mark.parametrize("size", SIZES)
def test_gradient_is_softmax_minus_onehot(size, scale, mean):
    words = size[0]
    logits, targets = rows_of(*size, mean)
    grad = scale * torch.randn(5, device=DEVICE)
    ours = row_gradient(logits, words, row_lse(logits, words), targets, grad, torch.float32)
    # A log-sum-exp near 100 has a precision of 8e-6.
    assert_close(ours[:, :words], expected_gradient(logits, words, targets, grad), 2e-5)
    assert (ours[:, words:] == 0).all()


def test_low_precision_gradient_is_rounded_once():
    logits, targets = rows_of(131, 256)
    grad = torch.randn(5, device=DEVICE)
    arguments = logits, 131, row_lse(logits, 131), targets, grad
    low, full = (row_gradient(*arguments, dtype) for dtype in (torch.float16, torch.float32))
    assert torch.equal(low, full.half())
