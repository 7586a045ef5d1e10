"""The operations on which speed depends, each in plain PyTorch and in a fast form.

`impl` chooses per call: `reference` is the plain form, `fused` the fast one, and `auto` takes the
fast one wherever it runs.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from zipflm.kernels import linear_nll_chunked, reference
from zipflm.kernels.operators import Nll
from zipflm.kernels.operators import checked_ids as checked_ids
from zipflm.kernels.reference import autocast as autocast
from zipflm.kernels.reference import statistics_dtype as statistics_dtype

Impl = Literal["auto", "reference", "fused"]
Rows = Literal["most", "few"]
"""How many rows of a call are active, as its caller knows beforehand: nobody asks the device."""

_WIDEST_WITH_MOST_ROWS = 128
"""Kernels that keep logits in registers win by leaving rows out. With nothing to leave out they win
for narrow layers only: on an H200 at 267,744 words 16 ms against 29 with width 64, but 55 against
36 with 256 and 210 against 54 with 512."""


def linear_nll(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> Tensor:
    """-log softmax(hidden @ weight.T)[target] per row; exactly 0 where not active.

    It follows autocast as built-in operations do, and keeps its statistics in float32 (float64 for
    float64 inputs). The fast forms have a first derivative only. With `create_graph=True`, in
    forward-mode differentiation and in transforms of `torch.func` the plain form takes over.
    """
    hidden_NE, weight_VE = autocast(hidden_NE), autocast(weight_VE)
    return _choose(hidden_NE, impl, rows)(hidden_NE, weight_VE, targets_N, active_N)


def _choose(hidden_NE: Tensor, impl: Impl, rows: Rows) -> Nll:
    if impl not in get_args(Impl):
        raise ValueError(f"impl={impl!r}: choose from {', '.join(get_args(Impl))}")
    if impl == "reference" or _is_transformed():
        return reference.linear_nll
    if hidden_NE.is_cuda and hidden_NE.dtype != torch.float64:
        from zipflm.kernels import linear_nll_triton

        widest = linear_nll_triton.MAX_WIDTH if rows == "few" else _WIDEST_WITH_MOST_ROWS
        if hidden_NE.shape[1] <= widest:
            return linear_nll_triton.linear_nll
    return linear_nll_chunked.linear_nll


def _is_transformed() -> bool:
    """True in `torch.func` and forward-mode differentiation, which operators do not support."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def linear_nll_sum(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> Tensor:
    """The sum of `linear_nll` over all rows, and faster to train with: a scalar.

    Its gradients are computed together with it, because all rows have the same one.
    """
    hidden_NE, weight_VE = autocast(hidden_NE), autocast(weight_VE)
    inputs = hidden_NE, weight_VE, targets_N, active_N
    of_rows = _choose(hidden_NE, impl, rows)
    learns = torch.is_grad_enabled() and (hidden_NE.requires_grad or weight_VE.requires_grad)
    # In float16 small gradients vanish unless the loss scale comes in before they are rounded.
    if of_rows is reference.linear_nll or not learns or hidden_NE.dtype == torch.float16:
        return of_rows(*inputs).sum()
    if of_rows is linear_nll_chunked.linear_nll:
        return linear_nll_chunked.linear_nll_sum(*inputs)
    from zipflm.kernels import linear_nll_triton

    return linear_nll_triton.linear_nll_sum(*inputs)
