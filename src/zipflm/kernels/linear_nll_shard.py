"""`linear_nll` for a softmax whose words are sharded over several processes.

Each process computes the log-sum-exp over its shard of the words, and the target's logit if the
target is in the shard (`shard_statistics`). Combined,

    nll = log(sum over processes of exp(log-sum-exp)) - logit of the target

Given the log-sum-exp over all words, each process computes the complete gradient of its weights and
its contribution to the gradient of every hidden vector (`shard_gradients`). Contributions are
summed.

Both use the kernels of `linear_nll`. Gradients cannot be computed in the forward pass as in
`linear_nll_sum`, because they need the log-sum-exp over the words of all processes.

Shapes: N tokens, E width, V words of this shard, possibly 0.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from zipflm.kernels import Impl, Rows, choose_kernels, linear_nll_chunked, reference
from zipflm.kernels.reference import statistics_dtype


def shard_statistics(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of every row over the words of this shard, and its target's logit.

    A target of -1 is a word of another shard; its logit is 0 here. Values of inactive rows are
    arbitrary. Every log-sum-exp of an empty shard is minus infinity.
    """
    if len(weight_VE) == 0:
        zeros_N = hidden_NE.new_zeros(len(hidden_NE), dtype=statistics_dtype(hidden_NE.dtype))
        return zeros_N - torch.inf, zeros_N
    kernels = _kernels(hidden_NE, impl, rows)
    nll_N, lse_N = kernels.forward(hidden_NE, weight_VE, targets_N.clamp(min=0), active_N)
    return lse_N, (lse_N - nll_N).where(targets_N >= 0, 0.0)


def shard_gradients(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> tuple[Tensor, Tensor]:
    """Return this shard's contribution to the gradient of hidden, and the gradient of its weights.

    `grad_N` is the gradient of the nll, `lse_N` the log-sum-exp over the words of all shards. A
    target of -1 is a word of another shard.
    """
    if len(weight_VE) == 0:
        return torch.zeros_like(hidden_NE), torch.zeros_like(weight_VE)
    gradients: tuple[Tensor, Tensor] = _kernels(hidden_NE, impl, rows).backward(
        grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N
    )
    return gradients


def _kernels(hidden_NE: Tensor, impl: Impl, rows: Rows) -> ModuleType:
    kernels = choose_kernels(hidden_NE, impl, rows)
    return linear_nll_chunked if kernels is reference else kernels
