"""`linear_nll` for a softmax whose words are sharded over several processes.

Each process computes the log-sum-exp over its shard of the words, and the target's logit if the
target is in the shard (`shard_statistics`). Combined,

    nll = log(sum over processes of exp(log-sum-exp)) - logit of the target

Given the log-sum-exp over all words, each process computes the complete gradient of its weights and
its contribution to the gradient of every hidden vector (`shard_gradients`). Contributions are
summed.

`kernels` is a module that implements `linear_nll`, but not the reference. Gradients cannot be
computed in the forward pass as in `linear_nll_sum`, because they need the log-sum-exp over the
words of all processes.

Shapes: N tokens, E width, V words of this shard, possibly 0.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from zipflm.kernels.reference import statistics_dtype


def shard_statistics(
    kernels: ModuleType,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of every row over the words of this shard, and its target's logit.

    A target of -1 is a word of another shard; its logit is 0 here. Values of inactive rows are
    arbitrary. Every log-sum-exp of an empty shard is minus infinity.
    """
    if len(weight_VE) == 0:
        zeros_N = hidden_NE.new_zeros(len(hidden_NE), dtype=statistics_dtype(hidden_NE.dtype))
        return zeros_N - torch.inf, zeros_N
    nll_N, lse_N = kernels.forward(hidden_NE, weight_VE, targets_N.clamp(min=0), active_N)
    return lse_N, (lse_N - nll_N).where(targets_N >= 0, 0.0)


def shard_gradients(
    kernels: ModuleType,
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return this shard's contribution to the gradient of hidden, and the gradient of its weights.

    `grad_N` is the gradient of the nll, `lse_N` the log-sum-exp over the words of all shards. A
    target of -1 is a word of another shard.
    """
    if len(weight_VE) == 0:
        return torch.zeros_like(hidden_NE), torch.zeros_like(weight_VE)
    gradients: tuple[Tensor, Tensor] = kernels.backward(
        grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N
    )
    return gradients
