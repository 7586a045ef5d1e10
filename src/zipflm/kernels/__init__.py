"""Performance-critical operations: dropout, and `linear_nll` with a reference and fast
implementations.

`impl` selects one per call: `reference` is plain PyTorch, `auto` the fastest one that supports the
inputs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from zipflm.kernels import linear_nll_chunked, reference
from zipflm.kernels.operators import checked_ids as checked_ids
from zipflm.kernels.reference import cast_for_matmul as cast_for_matmul
from zipflm.kernels.reference import statistics_dtype as statistics_dtype

Impl = Literal["auto", "reference"]
Rows = Literal["most", "few"]
"""Whether most or few rows are active. This is only a hint, because counting the active rows would
synchronize the device."""

_MAX_WIDTH_WITH_MOST_ROWS = 128
"""Maximum width for the kernels that keep logits in registers (`linear_nll_triton`) if most rows
are active. They skip inactive rows, but if most are active, they are faster only for narrow layers:
on an H200 with 267,744 words, 16 ms instead of 29 ms at width 64, but 55 ms instead of 36 ms at
width 256 and 210 ms instead of 54 ms at width 512."""


def linear_nll(
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    impl: Impl = "auto",
    *,
    rows: Rows = "most",
) -> Tensor:
    """Return -log softmax(hidden @ weight.T)[target] of each row; exactly 0 for inactive rows
    (`active_N` is False).

    Follows autocast like built-in operations, with statistics in float32 (float64 for float64
    inputs). The fast implementations only support first derivatives; `create_graph=True`,
    forward-mode differentiation and `torch.func` transforms use the reference.
    """
    hidden_NE, weight_VE = cast_for_matmul(hidden_NE), cast_for_matmul(weight_VE)
    kernels = choose_kernels(hidden_NE, impl, rows)
    nll_N: Tensor = kernels.linear_nll(hidden_NE, weight_VE, targets_N, active_N)
    return nll_N


def choose_kernels(hidden_NE: Tensor, impl: Impl, rows: Rows) -> ModuleType:
    """Return the module with the implementation of `linear_nll` to use."""
    if impl not in get_args(Impl):
        raise ValueError(f"impl={impl!r}: choose from {', '.join(get_args(Impl))}")
    if impl == "reference" or _is_transformed():
        return reference
    if hidden_NE.is_cuda and hidden_NE.dtype != torch.float64:
        from zipflm.kernels import linear_nll_triton

        max_width = linear_nll_triton.MAX_WIDTH if rows == "few" else _MAX_WIDTH_WITH_MOST_ROWS
        if hidden_NE.shape[1] <= max_width:
            return linear_nll_triton
    return linear_nll_chunked


def _is_transformed() -> bool:
    """Return True inside `torch.func` and forward-mode differentiation, which custom operators
    do not support."""
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
    """Return the sum of `linear_nll` over all rows. Training with it is faster.

    All rows have the same upstream gradient, so gradients are computed in the forward pass, except
    by the reference implementation and in float16.
    """
    hidden_NE, weight_VE = cast_for_matmul(hidden_NE), cast_for_matmul(weight_VE)
    inputs = hidden_NE, weight_VE, targets_N, active_N
    kernels = choose_kernels(hidden_NE, impl, rows)
    needs_grad = torch.is_grad_enabled() and (hidden_NE.requires_grad or weight_VE.requires_grad)
    # In float16 small gradients underflow unless the loss scale is applied before rounding.
    if kernels is reference or not needs_grad or hidden_NE.dtype == torch.float16:
        total: Tensor = kernels.linear_nll(*inputs).sum()
    else:
        total = kernels.linear_nll_sum(*inputs)
    return total
