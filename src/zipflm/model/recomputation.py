"""Activations that are computed again in the backward pass instead of being kept.

Everything is computed again but the result of attention itself. Keeping that takes one vector per
token; computing it again would take time that grows with the length of the block. PyTorch's own
attention is also the only operation that draws random numbers inside on a GPU (dropout takes its
seeds as arguments), so the second pass draws none, whether the code is compiled,
recorded as a CUDA graph or neither. On a CPU dropout draws from torch's generator, whose state is
put back for the second pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

_KEPT = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""Attention as a single operation, on GPUs and on the CPU. Where PyTorch has none that fits, for
one on a CPU with dropout, attention is several operations, which are computed again like others."""


def recomputed(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`function(*inputs)`, of which only the inputs, attention and the result are kept."""
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, context_fn=_contexts)
    return result


def _policy(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    if operation in _KEPT:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_contexts = partial(create_selective_checkpoint_contexts, _policy)
