"""Where attention from the packed projection is taken, and what its operators tell the compiler."""

import pytest
import torch
from nll_problems import DEVICE

from zipflm.kernels.packed_attention import (
    packed_attention,
    packed_attention_backward,
    packed_seed,
)

THRESHOLD = 6554


def test_the_operators_are_what_they_say_to_the_compiler():
    pytest.importorskip("triton")
    qkv, grad = torch.randn(1, 6, 48, device=DEVICE), torch.randn(1, 6, 16, device=DEVICE)
    seed = torch.tensor([3], device=DEVICE)
    arguments = qkv.requires_grad_(), seed, 1, THRESHOLD
    torch.library.opcheck(packed_attention, arguments)
    out, lse = (x.detach() for x in packed_attention(*arguments))
    backward = grad, qkv.detach(), out, lse, seed, 1, THRESHOLD
    torch.library.opcheck(packed_attention_backward, backward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_draws_no_seed_for_the_packed_one(dtype):
    assert packed_seed(torch.randn(1, 4, 32).to(dtype), 4, 0.1, True) is None


@pytest.mark.gpu
def test_a_gpu_does_for_dropout_in_low_precision_and_heads_that_fit():
    hidden = torch.randn(1, 4, 256, device="cuda")
    low = hidden.bfloat16()
    assert packed_seed(low, 2, 0.1, True).shape == (1,)
    assert packed_seed(low, 2, 0.1, False) is None
    assert packed_seed(low, 2, 0.0, True) is None
    assert packed_seed(low, 1, 0.1, True) is None
    assert packed_seed(hidden, 2, 0.1, True) is None
