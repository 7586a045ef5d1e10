"""The choice between implementations, and tests of all of them.

Triton's kernels run on a GPU, or in its interpreter.
"""

from importlib import import_module

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
from numerics import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode

from zipflm.kernels import linear_nll


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_affects_only_the_product(impl, dtype):
    hidden, weight, targets, active = problem(9, 16, 30, 0.7)
    with torch.autocast("cpu", dtype):
        nll = linear_nll(hidden, weight, targets, active, impl)
    low = linear_nll(hidden.to(dtype), weight.to(dtype), targets, active, impl)
    assert nll.dtype == torch.float32 and torch.equal(nll, low)
    assert not torch.equal(nll, linear_nll(hidden, weight, targets, active, impl))


def test_rejects_unknown_impl():
    with pytest.raises(ValueError, match="impl='quick': choose from auto, reference"):
        linear_nll(*problem(2, 4, 5, 1.1), "quick")


class FakeGpuTensor:
    is_cuda, dtype = True, torch.bfloat16

    def __init__(self, width):
        self.shape = (8, width)


@pytest.mark.parametrize(
    ("width", "rows", "module"),
    [
        (64, "few", "triton"),
        (512, "few", "triton"),
        (1024, "few", "chunked"),
        (64, "most", "triton"),
        (256, "most", "chunked"),
        (512, "most", "chunked"),
    ],
)
def test_chooses_kernel_by_width_and_rows(width, rows, module):
    from zipflm import kernels
    from zipflm.kernels import linear_nll_chunked, linear_nll_triton

    expected = {"triton": linear_nll_triton, "chunked": linear_nll_chunked}[module]
    assert kernels.choose_kernels(FakeGpuTensor(width), "auto", rows) is expected


# Dtype, tolerance and device.
EXACT = {"chunked": (torch.float64, 1e-12, "cpu"), "triton": (torch.float32, 2e-6, DEVICE)}
# The interpreter has no bfloat16 products.
LOW = [
    (name, dtype)
    for name in EXACT
    for dtype in (torch.float16, torch.bfloat16)
    if name == "chunked" or DEVICE == "cuda" or dtype == torch.float16
]
# Sizes that divide no block and no chunk.
SIZES = [(70, 24, 131), (5, 200, 77), (33, 64, 300), (1, 16, 1)]


def kernels_of(name):
    if name == "triton":
        pytest.importorskip("triton")
    return import_module(f"zipflm.kernels.linear_nll_{name}")


@pytest.mark.parametrize("share", [0.4, 0.0, 1.1], ids=["some", "none", "all"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXACT)
def test_matches_reference(name, size, share):
    (dtype, within, device), kernels = EXACT[name], kernels_of(name)
    arguments = problem(*size, share, dtype, device)
    ours = losses_and_gradients(kernels.linear_nll, *arguments)
    for part, mine, exact in zip(NAMES, ours, truth_of(*arguments), strict=True):
        assert_close(mine, exact, within, part)
    ours = sum_and_gradients(kernels.linear_nll_sum, *arguments)
    for part, mine, exact in zip(NAMES, ours, true_sum_and_gradients(*arguments), strict=True):
        assert_close(mine, exact, within, part)


@pytest.mark.parametrize(("name", "dtype"), LOW)
def test_is_as_accurate_as_plain_low_precision(name, dtype):
    kernels = kernels_of(name)
    arguments = problem(70, 64, 331, 0.6, dtype, EXACT[name][2])
    assert kernels.linear_nll(*arguments).dtype == torch.float32
    assert_as_accurate_as_reference(kernels.linear_nll, arguments)


# With a low log-sum-exp, exp(0 - lse) of padding overflows, in particular with a loss scale. The
# gradients themselves fit into float16.
@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("scale", [128, 65_536])
@pytest.mark.parametrize("lse", [-20, -60])
@pytest.mark.parametrize(("name", "dtype"), LOW)
def test_low_log_sum_exp_does_not_overflow(name, dtype, lse, scale, size):
    arguments = problem_with_lse(lse, *size, dtype, EXACT[name][2])
    upstream = (-0.4 * scale, 0.8 * scale)
    compute = kernels_of(name).linear_nll
    assert_as_accurate_as_reference(compute, arguments, upstream=upstream)


@pytest.mark.parametrize("name", EXACT)
def test_nan_in_inactive_rows_has_no_effect(name):
    kernels = kernels_of(name)
    hidden, weight, targets, active = problem(40, 16, 50, 0.5, device=EXACT[name][2])
    with torch.no_grad():
        hidden[~active] = float("nan")
    nll, d_hidden, d_weight = losses_and_gradients(
        kernels.linear_nll, hidden, weight, targets, active
    )
    assert (nll[~active] == 0).all() and (d_hidden[~active] == 0).all()
    total, d_hidden, d_sum = sum_and_gradients(
        kernels.linear_nll_sum, hidden, weight, targets, active
    )
    assert (d_hidden[~active] == 0).all()
    assert all(x.isfinite().all() for x in (d_weight, total, d_sum))


@pytest.mark.parametrize("share", [0.6, 0.0], ids=["some", "none"])
@pytest.mark.parametrize("name", EXACT)
def test_strides_of_gradients_match_fake_tensors(name, share):
    kernels_of(name)
    hidden, weight, targets, active = problem(9, 24, 33, share, device=EXACT[name][2])
    hidden, weight = (x.detach().T.contiguous().T for x in (hidden, weight))
    numbers = torch.ones_like(hidden[:, 0])
    arguments = hidden, weight, targets, active
    for operator, inputs in [
        (f"linear_nll_sum_{name}", arguments),
        (f"linear_nll_{name}_backward", (numbers, *arguments, numbers)),
    ]:
        run = getattr(torch.ops.zipflm, operator)
        with FakeTensorMode() as mode:
            fake = run(*(mode.from_tensor(x) for x in inputs))
        assert [x.stride() for x in run(*inputs)] == [x.stride() for x in fake]
