"""When a function may run in place of the operator that is made of it.

Operators of our own are what a compiler, a tracer or a gradient sees as one step. Where none of
them looks, the function alone does the same. That matters once a process: the first call of any
such operator makes torch import its compiler, for two thirds of the time that everything else takes
when a line of text is scored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode


def nobody_looks(*tensors: Tensor) -> bool:
    """Whether no compiler, no tracer and no gradient sees a call with these tensors."""
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
