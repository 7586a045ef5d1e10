"""The GPU kernels, in Triton's interpreter at toy sizes and on a GPU at real sizes."""

import pytest
import torch
from nll_problems import (
    DEVICE,
    NAMES,
    assert_as_accurate_as_reference,
    losses_and_gradients,
    problem,
    problem_with_lse,
    sum_and_gradients,
    true_sum_and_gradients,
    truth_of,
)
from numerics import assert_as_good_as_plain, assert_close

from zipflm.kernels import linear_nll, reference

triton = pytest.importorskip("triton")

from zipflm.kernels import linear_nll_triton  # noqa: E402


def ours_of(arguments, **options):
    return losses_and_gradients(linear_nll_triton.linear_nll, *arguments, **options)


@pytest.mark.parametrize("programs", [1, 7, 100])
def test_any_number_of_programs_works(monkeypatch, programs):
    """One, several per block of rows, and more than tiles."""
    monkeypatch.setattr(linear_nll_triton, "_num_programs", lambda *_: programs)
    arguments = problem(70, 24, 331, 0.8, device=DEVICE)
    for name, mine, exact in zip(NAMES, ours_of(arguments), truth_of(*arguments), strict=True):
        assert_close(mine, exact, 2e-6, name)


def test_accepts_strided_targets_and_gradients():
    hidden, weight, targets, active = problem(70, 24, 131, 0.4, device=DEVICE)
    apart = torch.stack([targets, targets.flip(0)], 1)[:, 0]
    assert not apart.is_contiguous()
    compact = ours_of((hidden, weight, targets, active))
    spread = ours_of((hidden, weight, apart, active))
    for mine, expected in zip(spread, compact, strict=True):
        assert torch.equal(mine, expected)
    hidden, weight, targets, active, grad, lse = (
        x.detach() for x in (hidden, weight, apart, active, *torch.rand(2, 70, device=DEVICE))
    )
    close = linear_nll_triton.backward(grad, hidden, weight, targets, active, lse)
    grad, lse = (torch.stack([x, -x], 1)[:, 0] for x in (grad, lse))
    far = linear_nll_triton.backward(grad, hidden, weight, targets, active, lse)
    for mine, expected in zip(far, close, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("size", [(70, 24, 131), (5, 200, 77)])
@pytest.mark.parametrize("scale", [128, 65_536])
@pytest.mark.parametrize("lse", [-60, -100])
def test_very_low_log_sum_exp_does_not_overflow_in_float32(lse, scale, size):
    arguments = problem_with_lse(lse, *size, device=DEVICE)
    upstream = (-0.4 * scale, 0.8 * scale)
    ours, truth = ours_of(arguments, upstream=upstream), truth_of(*arguments, upstream=upstream)
    for name, mine, exact in zip(NAMES, ours, truth, strict=True):
        # A log-sum-exp near -100 has few digits left in float32.
        assert_close(mine, exact, 3e-4, name)


def test_no_rows_give_zero_gradients():
    nll, _, d_weight = ours_of(problem(0, 16, 50, 0.5, device=DEVICE))
    assert nll.shape == (0,)
    assert (d_weight == 0).all()


@pytest.mark.slow
def test_is_deterministic():
    arguments = problem(70, 24, 1500, 0.5, device=DEVICE)
    for one, other in zip(ours_of(arguments), ours_of(arguments), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("width", "words", "share"),
    [(64, 207_744, 0.03), (256, 40_000, 0.07), (512, 20_000, 1.1), (1024, 20_002, 1.1)],
)
def test_real_sizes_on_a_gpu(width, words, share, dtype):
    arguments = problem(4096, width, words, share, dtype, DEVICE)
    assert_as_accurate_as_reference(linear_nll, arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("width", "words", "share"), [(64, 207_744, 0.03), (64, 20_001, 1.1), (256, 40_000, 0.07)]
)
def test_sums_of_real_sizes_on_a_gpu(width, words, share, dtype):
    arguments = problem(4096, width, words, share, dtype, DEVICE)
    truth = true_sum_and_gradients(*arguments)
    plain = sum_and_gradients(reference.linear_nll, *arguments)
    ours = sum_and_gradients(linear_nll_triton.linear_nll_sum, *arguments)
    for name, t, p, o in zip(NAMES, truth, plain, ours, strict=True):
        if dtype == torch.float32:
            # The kernels use powers of 2 of a rounded product instead of powers of e.
            assert_close(o, t, 2e-5, name)
        else:
            assert_as_good_as_plain(t, p, o, name)
