"""`linear_nll` in two halves, for somebody who holds a part of the words only.

With the words of a softmax spread over several owners, each of them computes the log-sum-exp over
its own words, and the target's logit if that word is its own (`part_statistics`). Put together,

    nll = log sum over owners of exp(their log-sum-exp) - the target's logit

and once everybody knows the log-sum-exp over all words, each has the whole gradient of its own
words, and its share of the gradient of every hidden vector (`part_gradients`); shares add up.

Both take the same roads as `linear_nll`: never all logits at once, and on a GPU the same kernels. A
sum cannot have its gradients computed together with it, as `linear_nll_sum` does: they need the
log-sum-exp over all words, which is known only after everybody has seen all of its logits.

Shapes: N tokens, E width, V words of this part, perhaps none.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from zipflm.kernels import Impl, Rows, _choose, linear_nll_chunked
from zipflm.kernels.reference import statistics_dtype


def part_statistics(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> tuple[Tensor, Tensor]:
    """The log-sum-exp of every row over these words, and the logit of its target.

    A target of -1 is a word of another part, whose logit counts as 0 here. Inactive rows have
    meaningless numbers, but finite ones unless there is no word at all: then the log-sum-exp of
    every row is minus infinity, as that of nothing is.
    """
    if len(weight_VE) == 0:
        nothing_N = hidden_NE.new_zeros(len(hidden_NE), dtype=statistics_dtype(hidden_NE.dtype))
        return nothing_N - torch.inf, nothing_N
    form = _form(hidden_NE, impl, rows)
    nll_N, lse_N = form.forward(hidden_NE, weight_VE, targets_N.clamp(min=0), active_N)
    return lse_N, (lse_N - nll_N).where(targets_N >= 0, 0.0)


def part_gradients(
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
    """This part's share of the gradient of hidden, and all of the gradient of its weight.

    `grad_N` is that of the nll, `lse_N` the log-sum-exp over the words of all parts; a target of -1
    is a word of another part.
    """
    if len(weight_VE) == 0:
        return torch.zeros_like(hidden_NE), torch.zeros_like(weight_VE)
    gradients: tuple[Tensor, Tensor] = _form(hidden_NE, impl, rows).backward(
        grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N
    )
    return gradients


def _form(hidden_NE: Tensor, impl: Impl, rows: Rows) -> ModuleType:
    """The module that computes; the plain form builds whole tables of logits, so it is left out."""
    of_rows = _choose(hidden_NE, impl, rows)
    if hidden_NE.is_cuda:
        from zipflm.kernels import linear_nll_triton

        if of_rows is linear_nll_triton.linear_nll:
            return linear_nll_triton
    return linear_nll_chunked
