"""Dropout kernels, on a GPU or in Triton's interpreter."""

import pytest
import torch
from nll_problems import DEVICE

triton = pytest.importorskip("triton")

from zipflm.kernels import dropout_triton  # noqa: E402
from zipflm.kernels.dropout_triton import keep_mask, relu_dropout  # noqa: E402


def mask(number, rate, seed=1):
    like = torch.empty(number, device=DEVICE)
    return keep_mask(like, torch.tensor([seed], device=DEVICE), round(rate * 65_536))


# Less than a block of 8 x 1024, exactly one, a little more than three.
@pytest.mark.parametrize("number", [1, 1000, 8192, 25_001])
def test_masks_of_any_size(number):
    found = mask(number, 0.25)
    assert found.shape == (number,) and found.dtype == torch.bool
    share = 1 - found.double().mean().item()
    assert abs(share - 0.25) <= 5 * (0.25 * 0.75 / number) ** 0.5


def test_mask_depends_on_the_seed():
    assert torch.equal(mask(5000, 0.5, seed=3), mask(5000, 0.5, seed=3))
    agreement = (mask(20_000, 0.5, seed=3) == mask(20_000, 0.5, seed=4)).double().mean()
    assert abs(agreement - 0.5) < 0.02


@pytest.mark.parametrize("distance", [1, 2, 1024, 2048, 4096, 8192])
def test_neighbors_are_independent(distance):
    # Multiples of 1024 share one draw of Philox.
    dropped = (~mask(60_000, 0.2)).double() - 0.2
    correlation = (dropped[:-distance] * dropped[distance:]).mean() / (0.2 * 0.8)
    assert abs(correlation) < 0.025


def test_rate_zero_keeps_everything():
    assert mask(5000, 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", [1, 1000, 8192, 9001])
def test_relu_dropout_uses_the_same_mask(number, dtype):
    x = torch.randn(number, device=DEVICE).to(dtype).requires_grad_()
    seed, threshold = torch.tensor([5], device=DEVICE), 16_384
    y = relu_dropout(x, None, seed, threshold)
    keep = keep_mask(x.detach(), seed, threshold)
    expected = torch.where(keep, x.detach().relu() * (4 / 3), 0.0)
    torch.testing.assert_close(y.detach(), expected, rtol=1e-2, atol=1e-6)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    flows = keep & (x > 0)
    torch.testing.assert_close(gradient, torch.where(flows, 4 / 3, 0.0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 7), (2, 70, 520)])
def test_bias_gradient_is_the_sum_of_gradients(shape, dtype):
    x, upstream = (torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))
    x.requires_grad_()
    bias = torch.randn(shape[-1], device=DEVICE, requires_grad=True)
    seed, threshold = torch.tensor([5], device=DEVICE), 16_384
    expected = torch.autograd.grad(relu_dropout(x, None, seed, threshold), x, upstream)[0]
    gradient, bias_gradient = torch.autograd.grad(
        relu_dropout(x, bias, seed, threshold), (x, bias), upstream
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-6)
    total = gradient.double().flatten(0, -2).sum(0)
    torch.testing.assert_close(bias_gradient.double(), total, rtol=1e-5, atol=1e-4)


def test_grid_size_is_limited(monkeypatch):
    """With 64 rows per program, the second axis would be too small for 4,194,240 tokens."""
    grids, kernel = [], dropout_triton._relu_backward_kernel

    class Recording:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(dropout_triton, "_relu_backward_kernel", Recording())
    monkeypatch.setattr(dropout_triton, "_MAX_PROGRAMS", 3)
    y, grad = torch.rand(2, 601, 13, device=DEVICE)
    dx, sums = dropout_triton.relu_dropout_backward(grad, y, 0)
    assert [rows for _, rows in grids] == [3]
    torch.testing.assert_close(dx, grad)
    torch.testing.assert_close(sums, grad.sum(0))
