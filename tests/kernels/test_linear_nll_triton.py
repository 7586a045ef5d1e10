"""The GPU kernels: in Triton's interpreter at toy sizes anywhere, and at real sizes on a GPU."""

import pytest
import torch
from numerics import assert_as_good_as_plain, assert_close

from zipflm.kernels import linear_nll, reference

triton = pytest.importorskip("triton")

from zipflm.kernels import linear_nll_triton, softmax_rows_triton  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter has no bfloat16 products.
LOW = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]


def problem(rows, width, words, share, dtype):
    hidden = torch.randn(rows, width, device=DEVICE).to(dtype).requires_grad_()
    weight = (torch.randn(words, width, device=DEVICE) / width**0.5).to(dtype).requires_grad_()
    targets = torch.randint(words, (rows,), device=DEVICE)
    active = torch.rand(rows, device=DEVICE) < share
    return hidden, weight, targets, active


def losses_and_gradients(compute, hidden, weight, targets, active):
    nll = compute(hidden, weight, targets, active)
    upstream = torch.linspace(-1, 2, len(nll), dtype=nll.dtype, device=DEVICE)
    return nll, *torch.autograd.grad(nll, (hidden, weight), upstream)


def truth_of(hidden, weight, targets, active):
    exact = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    return losses_and_gradients(reference.linear_nll, *exact, targets, active)


# Sizes that divide no block; bands with some, no and all tokens.
@pytest.mark.parametrize("share", [0.4, 0.0, 1.1])
@pytest.mark.parametrize("size", [(70, 24, 131), (5, 200, 77), (33, 64, 300), (1, 16, 1)])
def test_equals_the_reference_in_float32(size, share):
    arguments = problem(*size, share, torch.float32)
    ours = losses_and_gradients(linear_nll_triton.linear_nll, *arguments)
    for name, mine, exact in zip(
        ("nll", "hidden", "weight"), ours, truth_of(*arguments), strict=True
    ):
        assert_close(mine, exact, 2e-6, name)


@pytest.mark.parametrize("dtype", LOW)
def test_is_no_worse_than_plain_low_precision(dtype):
    arguments = problem(70, 64, 331, 0.6, dtype)
    plain = losses_and_gradients(reference.linear_nll, *arguments)
    ours = losses_and_gradients(linear_nll_triton.linear_nll, *arguments)
    assert ours[0].dtype == torch.float32
    truth = truth_of(*arguments)
    for name, t, p, o in zip(("nll", "hidden", "weight"), truth, plain, ours, strict=True):
        assert_as_good_as_plain(t, p, o, name)


def test_inactive_rows_are_exactly_zero():
    hidden, weight, targets, active = problem(40, 16, 50, 0.5, torch.float32)
    nll, d_hidden, _ = losses_and_gradients(
        linear_nll_triton.linear_nll, hidden, weight, targets, active
    )
    assert (nll[~active] == 0).all()
    assert (d_hidden[~active] == 0).all()


def test_no_rows_at_all_give_zero_gradients():
    hidden, weight, targets, active = problem(0, 16, 50, 0.5, torch.float32)
    nll, _, d_weight = losses_and_gradients(
        linear_nll_triton.linear_nll, hidden, weight, targets, active
    )
    assert nll.shape == (0,)
    assert (d_weight == 0).all()


def test_equal_inputs_give_equal_bits():
    arguments = problem(70, 24, 5000, 0.5, torch.float32)
    first, second = (
        losses_and_gradients(linear_nll_triton.linear_nll, *arguments) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_row_kernels_equal_the_plain_ones():
    padded, targets = torch.randn(5, 9050, device=DEVICE) * 4, torch.randint(9001, (5,))
    logits = padded[:, :9001]
    lse = softmax_rows_triton.row_lse(padded, 9001)
    assert_close(lse, logits.double().logsumexp(-1), 1e-6)
    grad = torch.randn(5, device=DEVICE)
    ours = softmax_rows_triton.row_gradient(
        padded, 9001, lse, targets.to(DEVICE), grad, torch.float32
    )
    onehot = torch.nn.functional.one_hot(targets, 9001).to(DEVICE)
    assert_close(ours[:, :9001], (logits.softmax(-1) - onehot) * grad[:, None], 1e-6)
    assert (ours[:, 9001:] == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("width", "words", "share"),
    [(64, 207_744, 0.03), (256, 40_000, 0.07), (512, 20_000, 1.1), (1024, 20_002, 1.1)],
)
def test_real_sizes_on_a_gpu(width, words, share, dtype):
    arguments = problem(4096, width, words, share, dtype)
    plain = losses_and_gradients(reference.linear_nll, *arguments)
    ours = losses_and_gradients(linear_nll, *arguments)
    truth = truth_of(*arguments)
    for name, t, p, o in zip(("nll", "hidden", "weight"), truth, plain, ours, strict=True):
        assert_as_good_as_plain(t, p, o, name)
