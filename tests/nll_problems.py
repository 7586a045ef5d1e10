"""Inputs of `linear_nll` for tests of its implementations, and the results of each."""

import math

import torch
from numerics import assert_as_good_as_plain

from zipflm.kernels import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("nll", "hidden", "weight")
"""The values that `losses_and_gradients` returns."""


def problem(rows, width, words, share, dtype=torch.float32, device="cpu"):
    """Hidden vectors, weights, targets, and a mask that is true for about `share` of the rows."""
    hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(words, width, device=device) / width**0.5).to(dtype).requires_grad_()
    targets = torch.randint(words, (rows,), device=device)
    return hidden, weight, targets, torch.rand(rows, device=device) < share


def problem_with_lse(lse, rows, width, words, dtype=torch.float32, device="cpu"):
    """The same, with the log-sum-exp of every row near `lse`: all words are about as unlikely."""
    hidden, weight, targets, active = problem(rows, width, words, 0.6, dtype, device)
    each = (lse - math.log(words)) / (0.5 * width)
    with torch.no_grad():
        hidden.copy_(0.5 + 0.1 * torch.randn(rows, width))
        weight.copy_(each + 0.1 * torch.randn(words, width))
    return hidden, weight, targets, active


def losses_and_gradients(compute, hidden, weight, targets, active, upstream=(-1, 2)):
    """nll and the gradients of hidden and weight, for a gradient of nll that spans `upstream`."""
    nll = compute(hidden, weight, targets, active)
    grad = torch.linspace(*upstream, len(nll), dtype=nll.dtype, device=nll.device)
    return nll, *torch.autograd.grad(nll, (hidden, weight), grad)


def truth_of(hidden, weight, targets, active, **options):
    """The reference in float64."""
    exact = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    return losses_and_gradients(reference.linear_nll, *exact, targets, active, **options)


def sum_and_gradients(compute, hidden, weight, targets, active, factor=0.5):
    """The summed nll and the gradients. Only factors that are powers of two do not round again."""
    total = compute(hidden, weight, targets, active).sum()
    return total, *torch.autograd.grad(factor * total, (hidden, weight))


def true_sum_and_gradients(hidden, weight, targets, active, factor=0.5):
    """The reference in float64."""
    exact = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    return sum_and_gradients(reference.linear_nll, *exact, targets, active, factor)


def assert_as_accurate_as_reference(compute, arguments, **options):
    plain = losses_and_gradients(reference.linear_nll, *arguments, **options)
    truth, ours = (
        truth_of(*arguments, **options),
        losses_and_gradients(compute, *arguments, **options),
    )
    for name, t, p, o in zip(NAMES, truth, plain, ours, strict=True):
        assert_as_good_as_plain(t, p, o, name)
