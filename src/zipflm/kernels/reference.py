"""Reference implementation in plain PyTorch, and the precision that all implementations use.

The reference defines the correct result. It materializes the full [N, V] logits.

Shapes: N tokens, E width, V words (of one softmax).
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear_nll(hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor) -> Tensor:
    """Return -log softmax(hidden @ weight.T)[target] of each row, in nats.

    Exactly 0, with a gradient of exactly 0, where `active_N` is False.
    """
    hidden_NE = hidden_NE.where(active_N.unsqueeze(1), 0.0)  # 0 times infinity would be NaN
    logits_NV = (hidden_NE @ weight_VE.T).to(statistics_dtype(hidden_NE.dtype))
    logp_NV = logits_NV.log_softmax(dim=-1)
    nll_N = -logp_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    return nll_N.where(active_N, 0.0)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of losses and log-sum-exps: float32, or float64 for float64 inputs."""
    return torch.promote_types(dtype, torch.float32)


def cast_for_matmul(tensor: Tensor) -> Tensor:
    """Cast a tensor as autocast does for built-in matrix products. float64 is not changed."""
    device = tensor.device.type
    if device == "meta" or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
