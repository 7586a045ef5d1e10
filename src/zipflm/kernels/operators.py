"""Operators of our own: what a compiler, a tracer or a gradient sees as one step.

Whatever an operator does inside, a graph holds it as a single node, and eager, compiled and
distributed code call it in the same way. Otherwise the function alone is called
(`can_skip_dispatch`): the first call of any such operator in a process makes torch import its
compiler, for two thirds of the time that everything else takes when a line of text is scored.

Shapes: N tokens, E width, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from zipflm.kernels import reference
from zipflm.kernels.reference import statistics_dtype

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


def can_skip_dispatch(*tensors: Tensor) -> bool:
    """True if no compiler, tracer or autograd needs to see a call with these tensors."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    # In a transform of `torch.func` a tensor does not say that somebody outside differentiates it.
    if torch._C._are_functorch_transforms_active():
        return False
    if _get_current_dispatch_mode() is not None:  # which sees every operator that is called
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    # Other kinds of tensors may have shapes and no values, or do more than their operator says.
    return all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)


def _check(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    valid = (ids >= 0) & (ids < size)
    if active is not None:
        valid = valid | ~active
    if ids.device.type != "cpu":
        torch._assert_async(valid.all(), f"{name}: an id lies outside the vocabulary of {size}")
    elif not bool(valid.all()):
        bad = int(ids.flatten()[valid.flatten().to(torch.uint8).argmin()])
        raise ValueError(
            f"{name}={bad}: outside the vocabulary of {size} words; give ids from 0 to {size - 1}"
        )
    return ids.clone() if active is None else ids.where(active, 0)


_checked = torch.library.custom_op("zipflm::checked_ids", _check, mutates_args=())


@_checked.register_fake
def _(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    return torch.empty_like(ids)


def checked_ids(name: str, ids: Tensor, size: int, active: Tensor | None = None) -> Tensor:
    """The ids as int64, each in [0, size); those not `active` are not checked and become 0.

    On a CPU a bad id raises at once. Elsewhere it is an assertion on the device, so that the host
    does not wait for it.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(
            f"{name}.dtype={ids.dtype}: word ids are integers; convert them, e.g. {name}.long()"
        )
    # First, because a narrow type may not hold `size` to compare with.
    ids = ids.to(torch.int64)
    tensors = (ids,) if active is None else (ids, active)
    check = _check if can_skip_dispatch(*tensors) else _checked
    checked: Tensor = check(ids, active, name, size)
    return checked


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
        nll_N, _ = forward(*inputs) if can_skip_dispatch(*inputs) else run_forward(*inputs)
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
