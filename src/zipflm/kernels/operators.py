"""Custom operators, which compilers, tracers and autograd treat as single nodes.

If none of these is involved, the plain function is called instead (`can_skip_dispatch`): the first
call to a custom operator makes torch import its compiler, which takes two thirds as long as
everything else that `zipflm score` does for one line of text.

Shapes: N tokens, E width, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

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
"""grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N -> gradients of hidden and weight, which
must be contiguous, as declared to the compiler."""
SumAndGradients = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""hidden_NE, weight_VE, targets_N, active_N -> the summed nll and the contiguous gradients of
hidden and weight, the latter in `statistics_dtype`."""

F = TypeVar("F", Forward, SumAndGradients)


def can_skip_dispatch(*tensors: Tensor) -> bool:
    """True if no compiler, tracer or autograd needs to see a call with these tensors."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    # Inside a `torch.func` transform, a tensor may be differentiated without requires_grad.
    if torch._C._are_functorch_transforms_active():
        return False
    if _get_current_dispatch_mode() is not None:  # a mode sees every operator
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    # Subclasses may be fake tensors or have their own dispatch.
    return all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)


def _check(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    valid = (ids >= 0) & (ids < size)
    if active is not None:
        valid = valid | ~active
    if ids.device.type != "cpu":
        torch._assert_async(valid.all(), f"{name}: an id is outside the vocabulary of {size} words")
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
    """Convert ids to int64 and check that active ones are in [0, size). Inactive ids become 0.

    On a CPU a bad id raises a ValueError. On a GPU it fails a device-side assertion, which does
    not synchronize.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(
            f"{name}.dtype={ids.dtype}: word ids are integers; convert them, e.g. {name}.long()"
        )
    # Convert before comparing, because a narrow dtype may not hold `size`.
    ids = ids.to(torch.int64)
    tensors = (ids,) if active is None else (ids, active)
    check = _check if can_skip_dispatch(*tensors) else _checked
    checked: Tensor = check(ids, active, name, size)
    return checked


def nll_operator(name: str, forward: Forward, backward: Backward) -> Nll:
    """Create a differentiable function that returns nll_N, registered as `zipflm::name`."""
    forward = _on_its_device(forward)
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
    """Create a differentiable function that returns the summed nll, registered as `zipflm::name`.

    All rows of a sum have the same upstream gradient, so the gradients of the inputs are computed
    in the forward pass and only scaled in the backward pass.
    """
    sum_and_gradients = _on_its_device(sum_and_gradients)
    run = torch.library.custom_op(f"zipflm::{name}", sum_and_gradients, mutates_args=())

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.set_materialize_grads(False)  # the saved gradients receive none
        ctx.dtype = inputs[1].dtype

    def autograd(ctx: Any, grad: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
        if grad is None:  # the sum does not affect the loss
            return None, None, None, None
        if torch.is_grad_enabled():
            inputs = ctx.saved_tensors[:4]
            return _differentiable_gradients(grad.expand(len(inputs[0])), *inputs)
        d_hidden_NE, d_weight_VE = (
            # Scale before rounding to the dtype of the gradients.
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


def _on_its_device(function: F) -> F:
    """Make the GPU of the inputs the current one, because Triton launches kernels there. A backward
    pass does not need this: autograd selects the GPU."""

    @wraps(function)
    def run(*inputs: Tensor) -> Any:
        with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
            return function(*inputs)

    return run


def _differentiable_gradients(
    grad_N: Tensor, hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor | None, ...]:
    """Compute gradients with the reference implementation, for `create_graph=True`."""
    # Use views: if one input was computed from the other, its gradient would otherwise be counted
    # twice.
    inputs = hidden_NE.view_as(hidden_NE), weight_VE.view_as(weight_VE)
    nll_N = reference.linear_nll(*inputs, targets_N, active_N)
    trainable = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(nll_N, trainable, grad_N, create_graph=True))
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
