import pytest
import torch

from zipflm.kernels.precision import autocast, statistics_dtype

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("lowered_to", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", FLOATS)
def test_autocast_lowers_what_a_matrix_product_would(dtype, lowered_to):
    matrix = torch.eye(3, dtype=dtype)
    with torch.autocast("cpu", lowered_to):
        assert autocast(matrix).dtype == (matrix @ matrix).dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_without_autocast_it_is_the_tensor_itself(dtype):
    matrix = torch.eye(3, dtype=dtype)
    assert autocast(matrix) is matrix
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert autocast(matrix) is matrix


def test_autocast_of_one_device_leaves_another_alone():
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast(torch.eye(3, device="meta")).dtype == torch.float32


@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_never_have_less_than_float32(dtype):
    kept = statistics_dtype(dtype)
    assert kept == (torch.float64 if dtype == torch.float64 else torch.float32)
