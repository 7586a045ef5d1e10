"""Attention with dropout on a CPU: the mathematics of PyTorch's own, with other masks."""

import math

import pytest
import torch
from torch.nn import functional as F

from zipflm.kernels import attention
from zipflm.kernels.attention import causal_attention
from zipflm.kernels.dropout import LEVELS, noise

SHAPE = 2, 3, 7, 4
BLOCKS = [1, 3, 7, 64]
"""Queries computed together: one, a number that leaves a rest, all, more than there are."""


@pytest.fixture(params=BLOCKS)
def block(request, monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK", request.param)
    return request.param


def vectors(seed=0):
    draws = torch.randn(3, *SHAPE, dtype=torch.float64, generator=torch.manual_seed(seed))
    # As the decoder has them: heads lie beside each other.
    return [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in draws]


def by_definition(query, key, value, rate, block):
    scores = query @ key.mT / math.sqrt(SHAPE[-1])
    future = torch.ones(7, 7).triu(1).bool()
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return (weights * masks(rate, block)) @ value


def masks(rate, block):
    """Drawn block by block, for the keys up to its end."""
    drawn = torch.zeros(6, 7, 7, dtype=torch.float64)
    for start in range(0, 7, block):
        part = drawn[:, start : start + block, : start + block]
        part.copy_(noise(part.shape, part.dtype, round(rate * LEVELS)))
    return drawn.view(2, 3, 7, 7)


def test_without_dropout_it_is_torchs_own():
    query, key, value = vectors()
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(causal_attention(query, key, value, 0.0), expected)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_values_and_gradients_are_those_of_the_definition(rate, block):
    results = []
    for function in (causal_attention, lambda *arguments: by_definition(*arguments, block)):
        inputs = vectors()
        torch.manual_seed(1)
        output = function(*inputs, rate)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK", 3)

    def with_the_same_mask(*inputs):
        torch.manual_seed(1)
        return causal_attention(*inputs, 0.3)

    assert torch.autograd.gradcheck(with_the_same_mask, vectors())


def test_low_precision_is_near_and_keeps_its_type(block):
    exact, low = vectors(), [x.detach().bfloat16() for x in vectors()]
    outputs = []
    for inputs in (exact, low):
        torch.manual_seed(1)
        outputs.append(causal_attention(*inputs, 0.3))
    assert outputs[1].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[1].double(), outputs[0], rtol=0.05, atol=0.05)


def test_gradients_in_low_precision_do_not_round_with_every_block(monkeypatch):
    """Blocks add up to the gradients of keys and values, which one block has at once."""
    inputs = torch.randn(4, 1, 2, 512, 16, dtype=torch.float64, generator=torch.manual_seed(0))
    errors = {}
    for block in (8, 512):
        monkeypatch.setattr(attention, "_BLOCK", block)
        results = []
        for dtype in (torch.float64, torch.bfloat16):
            *vectors, grad = (x.to(dtype).requires_grad_() for x in inputs)
            torch.manual_seed(1)
            output = causal_attention(*vectors, 0.1)
            results.append(torch.autograd.grad(output, vectors[1:], grad))
        errors[block] = [
            ((low - exact).norm() / exact.norm()).item()
            for exact, low in zip(*results, strict=True)
        ]
    assert all(many < 1.2 * one for many, one in zip(*errors.values(), strict=True)), errors


def test_autocast_takes_inputs_of_several_types():
    query, key, value = (x.detach().float().requires_grad_() for x in vectors())
    with torch.autocast("cpu", torch.bfloat16):
        output = causal_attention(query, key, value.bfloat16(), 0.3)
    assert output.dtype == torch.bfloat16
    gradients = torch.autograd.grad(output.float().sum(), (query, key, value))
    assert [g.dtype for g in gradients] == [torch.float32] * 3


def test_the_backward_pass_is_as_precise_as_the_forward_pass_inside_autocast_too():
    results = []
    for is_on in (False, True):
        inputs = [x.detach().float().requires_grad_() for x in vectors()]
        torch.manual_seed(1)
        output = causal_attention(*inputs, 0.3).square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            results.append(torch.autograd.grad(output, inputs))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_where_new_tensors_go_by_default_does_not_matter():
    inputs, outputs = vectors(), []
    for device in ("cpu", "meta"):
        torch.manual_seed(1)
        with torch.device(device):
            outputs.append(causal_attention(*inputs, 0.3))
    assert torch.equal(*outputs)


def test_later_positions_are_not_seen(block):
    query, key, value = vectors()
    outputs = []
    for last in (key, key + torch.eye(7)[-1].view(1, 1, 7, 1)):
        torch.manual_seed(1)
        outputs.append(causal_attention(query, last, value, 0.3))
    assert torch.equal(outputs[0][:, :, :-1], outputs[1][:, :, :-1])
    assert not torch.equal(outputs[0], outputs[1])


def test_the_mean_over_masks_is_attention_without_them():
    query, key, value = (x[:1, :1].expand(4000, 1, -1, -1) for x in vectors())
    mean = causal_attention(query, key, value, 0.2).mean(0)
    expected = causal_attention(query[:1], key[:1], value[:1], 0.0)[0]
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.1)
