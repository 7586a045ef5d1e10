import pytest
import torch

from zipflm.model.precision import autocast


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_autocast_lowers_products_but_not_losses(precision):
    linear, hidden = torch.nn.Linear(4, 4), torch.randn(3, 4)
    with autocast(precision, torch.device("cpu")):
        product = linear(hidden)
        loss = torch.nn.functional.nll_loss(product.log_softmax(-1), torch.tensor([0, 1, 2]))
    assert product.dtype == getattr(torch, precision)
    assert loss.dtype == linear.weight.dtype == torch.float32


def test_float32_disables_outer_autocast():
    with autocast("bfloat16", "cpu"), autocast("float32", "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
