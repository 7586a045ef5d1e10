"""Makes one operator, opaque to the compiler, out of functions that compute nll and gradients.

Whatever the two do inside, a graph holds the operator as a single node, and eager, compiled and
distributed code call it in the same way.

Shapes: N tokens, E width, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zipflm.kernels import reference
from zipflm.kernels.operators import nobody_looks
from zipflm.kernels.precision import statistics_dtype

Nll = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""hidden_NE, weight_VE, targets_N, active_N -> nll_N or its sum."""
Forward = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""hidden_NE, weight_VE, targets_N, active_N -> nll_N, lse_N."""
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N -> gradients of hidden and weight, both
contiguous whatever the inputs are: the compiler is told so."""
SumAndGradients = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""hidden_NE, weight_VE, targets_N, active_N -> the summed nll, gradients of hidden and weight, the
latter in the precision of statistics; both contiguous."""


def nll_operator(name: str, forward: Forward, backward: Backward) -> Nll:
    """Register both under `zipflm::name`; the result gives nll_N and its derivatives."""
    run_forward = torch.library.custom_op(f"zipflm::{name}", forward, mutates_args=())
    run_backward = torch.library.custom_op(f"zipflm::{name}_backward", backward, mutates_args=())

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[1])

    def autograd(ctx: Any, grad_nll_N: Tensor, grad_lse_N: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _differentiable_gradients(grad_nll_N, *ctx.saved_tensors[:4])
        return *run_backward(grad_nll_N, *ctx.saved_tensors), None, None

    run_forward.register_fake(_fake_forward)
    run_backward.register_fake(_fake_backward)
    run_forward.register_autograd(autograd, setup_context=setup_context)

    def linear_nll(
        hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
    ) -> Tensor:
        inputs = hidden_NE, weight_VE, targets_N, active_N
        nll_N, _ = forward(*inputs) if nobody_looks(*inputs) else run_forward(*inputs)
        return nll_N

    return linear_nll


def nll_sum_operator(name: str, sum_and_gradients: SumAndGradients) -> Nll:
    """Register a function under `zipflm::name`; the result gives the summed nll and its gradient.

    A sum has one gradient for all rows, so that those of its inputs can be computed together with
    it and only need a factor afterwards.
    """
    run = torch.library.custom_op(f"zipflm::{name}", sum_and_gradients, mutates_args=())

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.set_materialize_grads(False)  # nobody asks for gradients of the gradients
        ctx.dtype = inputs[1].dtype

    def autograd(ctx: Any, grad: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
        if grad is None:  # somebody behind has said that the sum does not matter
            return None, None, None, None
        if torch.is_grad_enabled():
            inputs = ctx.saved_tensors[:4]
            return _differentiable_gradients(grad.expand(len(inputs[0])), *inputs)
        d_hidden_NE, d_weight_VE = (
            # The factor is not rounded to the gradients' precision: it is the same for all.
            (gradient.to(grad.dtype) * grad).to(ctx.dtype)
            for gradient in ctx.saved_tensors[4:]
        )
        return d_hidden_NE, d_weight_VE, None, None

    run.register_fake(_fake_sum_and_gradients)
    run.register_autograd(autograd, setup_context=setup_context)

    def linear_nll_sum(
        hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
    ) -> Tensor:
        total: Tensor = run(hidden_NE, weight_VE, targets_N, active_N)[0]
        return total

    return linear_nll_sum


def _differentiable_gradients(
    grad_N: Tensor, hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor | None, ...]:
    """With `create_graph=True` gradients are differentiated again, so the plain form makes them."""
    # Views, because one of the two may have been computed from the other.
    inputs = hidden_NE.view_as(hidden_NE), weight_VE.view_as(weight_VE)
    nll_N = reference.linear_nll(*inputs, targets_N, active_N)
    learning = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(nll_N, learning, grad_N, create_graph=True))
    return *(next(gradients) if x.requires_grad else None for x in inputs), None, None


def _fake_sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden_NE.new_empty((), dtype=statistics_dtype(hidden_NE.dtype))
    d_weight_VE = weight_VE.new_empty(weight_VE.shape, dtype=total.dtype)
    return total, hidden_NE.new_empty(hidden_NE.shape), d_weight_VE


def _fake_forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    nll_N = hidden_NE.new_empty(hidden_NE.shape[0], dtype=statistics_dtype(hidden_NE.dtype))
    return nll_N, torch.empty_like(nll_N)


def _fake_backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    return hidden_NE.new_empty(hidden_NE.shape), weight_VE.new_empty(weight_VE.shape)
