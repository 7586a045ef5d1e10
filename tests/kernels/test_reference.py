"""The reference implementation, compared with PyTorch's cross-entropy."""

import math

import pytest
import torch
from nll_problems import losses_and_gradients, problem
from numerics import assert_close
from torch.nn import functional as F

from zipflm.kernels.reference import cast_for_matmul, linear_nll

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_hand_computed_case():
    """Logits 0 and log 3: probabilities 1/4 and 3/4."""
    hidden, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [math.log(3)]])
    nll = linear_nll(hidden, weight, torch.tensor([0, 1]), torch.tensor([True, True]))
    assert_close(nll, torch.tensor([math.log(4), math.log(4 / 3)]), 1e-6)


def test_matches_cross_entropy_and_its_gradients():
    arguments = problem(17, 12, 31, 1.1, torch.float64)

    def cross_entropy(hidden, weight, targets, active):
        return F.cross_entropy(hidden @ weight.T, targets, reduction="none")

    expected = losses_and_gradients(cross_entropy, *arguments)
    for ours, theirs in zip(losses_and_gradients(linear_nll, *arguments), expected, strict=True):
        assert_close(ours, theirs, 1e-12)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e300])
def test_inactive_rows_affect_nothing(poison):
    hidden, weight, targets, active = problem(40, 16, 50, 0.5, torch.float64)
    results = []
    for value in (0.0, poison):
        with torch.no_grad():
            hidden[~active] = value
        results.append(losses_and_gradients(linear_nll, hidden, weight, targets, active))
    for clean, poisoned in zip(*results, strict=True):
        assert torch.equal(clean, poisoned)
    nll, d_hidden, _ = results[1]
    assert (nll[~active] == 0).all() and (d_hidden[~active] == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_losses_are_float32_or_float64(dtype):
    nll = linear_nll(*problem(4, 8, 10, 1.1, dtype))
    assert nll.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_has_a_second_derivative():
    hidden, weight, targets, active = problem(4, 3, 5, 0.6, torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda h, w: linear_nll(h, w, targets, active), (hidden, weight)
    )


@pytest.mark.parametrize("lowered_to", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", FLOATS)
def test_autocast_matches_matrix_products(dtype, lowered_to):
    matrix = torch.eye(3, dtype=dtype)
    with torch.autocast("cpu", lowered_to):
        assert cast_for_matmul(matrix).dtype == (matrix @ matrix).dtype
