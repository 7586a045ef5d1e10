"""Attention with dropout on a CPU: the mathematics of PyTorch's own, with other masks."""

import math

import pytest
import torch
from torch.nn import functional as F

from zipflm.kernels.attention import causal_attention
from zipflm.kernels.dropout import dropout

SHAPE = 2, 3, 7, 4


def vectors(seed=0):
    draws = torch.randn(3, *SHAPE, dtype=torch.float64, generator=torch.manual_seed(seed))
    # As the decoder has them: heads lie beside each other.
    return [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in draws]


def by_definition(query, key, value, rate):
    scores = query @ key.mT / math.sqrt(SHAPE[-1])
    future = torch.ones(7, 7).triu(1).bool()
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return dropout(weights.flatten(0, 1), rate, True).view(2, 3, 7, 7) @ value


def test_without_dropout_it_is_torchs_own():
    query, key, value = vectors()
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(causal_attention(query, key, value, 0.0), expected)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_values_and_gradients_are_those_of_the_definition(rate):
    results = []
    for attention in (causal_attention, by_definition):
        inputs = vectors()
        torch.manual_seed(1)
        output = attention(*inputs, rate)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_later_positions_are_not_seen():
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
