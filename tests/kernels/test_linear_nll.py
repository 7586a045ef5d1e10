"""The choice between the forms, and what holds for each."""

import pytest
import torch
from nll_problems import problem

from zipflm.kernels import linear_nll


@pytest.mark.parametrize("impl", ["auto", "fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_lowers_the_product_and_nothing_else(impl, dtype):
    hidden, weight, targets, active = problem(9, 16, 30, 0.7)
    with torch.autocast("cpu", dtype):
        nll = linear_nll(hidden, weight, targets, active, impl)
    low = linear_nll(hidden.to(dtype), weight.to(dtype), targets, active, impl)
    assert nll.dtype == torch.float32 and torch.equal(nll, low)
    assert not torch.equal(nll, linear_nll(hidden, weight, targets, active, impl))


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="impl='quick': choose from auto, reference, fused"):
        linear_nll(*problem(2, 4, 5, 1.1), "quick")


class OnAGpu:
    """As much of a tensor as the choice of a kernel looks at."""

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
def test_a_dense_layer_is_not_taken_for_a_narrow_band(width, rows, module):
    from zipflm import kernels
    from zipflm.kernels import linear_nll_chunked, linear_nll_triton

    expected = {"triton": linear_nll_triton, "chunked": linear_nll_chunked}[module]
    assert kernels._choose(OnAGpu(width), "auto", rows) is expected.linear_nll
