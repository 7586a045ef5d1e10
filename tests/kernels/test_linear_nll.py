"""The choice between implementations, and properties of all of them."""

import pytest
import torch
from nll_problems import problem

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
