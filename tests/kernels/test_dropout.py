"""Rates, scaling, gradients and random state of dropout."""

import sys

import numpy as np
import pytest
import torch
from nll_problems import DEVICE

from zipflm.kernels.dropout import dropout, relu_dropout

RATES = [0.1, 0.2, 0.5]


@pytest.mark.parametrize("function", [dropout, relu_dropout])
def test_no_dropout_in_evaluation_or_at_rate_zero(function):
    x = torch.randn(100, device=DEVICE)
    expected = x if function is dropout else x.relu()
    assert torch.equal(function(x, 0.5, False), expected)
    assert torch.equal(function(x, 0.0, True), expected)


@pytest.mark.parametrize("rate", RATES)
def test_kept_elements_are_scaled(rate):
    x = torch.ones(1 << 18, device=DEVICE)
    y = dropout(x, rate, True)
    kept = y != 0
    assert abs(1 - kept.double().mean().item() - rate) < 0.005  # five standard deviations
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - rate)), rtol=2e-5, atol=0)


@pytest.mark.parametrize("rate", RATES)
def test_gradient_is_nonzero_only_for_kept_elements(rate):
    x = torch.randn(4096, device=DEVICE, requires_grad=True)
    for function in (dropout, relu_dropout):
        y = function(x, rate, True)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        expected = torch.where(y != 0, 1 / (1 - rate), 0.0)
        torch.testing.assert_close(gradient, expected, rtol=2e-5, atol=0)
        assert (y[(x < 0).nonzero()] == 0).all() or function is dropout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [0, 1, 3, 4, 1001])
def test_accepts_any_dtype_and_size(dtype, number):
    y = dropout(torch.ones(number, dtype=dtype, device=DEVICE), 0.25, True)
    assert (y.shape, y.dtype) == ((number,), dtype)
    assert set(y.tolist()) <= {0.0, torch.tensor(4 / 3, dtype=dtype).item()}


def test_small_rates_are_exact_in_low_precision():
    """bfloat16 has 8 bits of precision; rates have 16."""
    y = dropout(torch.ones(1 << 20, dtype=torch.bfloat16, device=DEVICE), 0.003, True)
    assert abs((y == 0).double().mean().item() - 0.003) < 5 * (0.003 / (1 << 20)) ** 0.5


def test_elements_that_share_a_draw_are_independent():
    kept = (dropout(torch.ones(1 << 18, 8, device=DEVICE), 0.5, True) != 0).double() - 0.5
    correlation = 4 * (kept.T @ kept) / len(kept)
    assert (correlation - torch.eye(8, device=DEVICE)).abs().max() < 6 / len(kept) ** 0.5


def test_masks_depend_only_on_torchs_generator():
    """Resumed runs restore only that state."""
    x = torch.ones(4096, device=DEVICE)
    torch.manual_seed(1)
    dropout(x, 0.3, True)
    if DEVICE == "cuda":
        state, restore = torch.cuda.get_rng_state(), torch.cuda.set_rng_state
    else:
        state, restore = torch.get_rng_state(), torch.set_rng_state
    first = [function(x, 0.3, True) for function in (dropout, relu_dropout)]
    np.random.seed(0)
    restore(state)
    again = [function(x, 0.3, True) for function in (dropout, relu_dropout)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(*first)


def test_works_without_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    x, results = torch.ones(1 << 16), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(x, 0.3, True))
    assert abs((results[0] == 0).double().mean().item() - 0.3) < 0.01
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("function", [dropout, relu_dropout])
def test_ignores_default_device(function):
    x = torch.ones(100, device=DEVICE)
    with torch.device("meta"):
        y = function(x, 0.5, True)
    assert set(y.tolist()) == {0.0, 2.0}
