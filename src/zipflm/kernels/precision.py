"""Which dtype a product takes, and which one its statistics keep."""

from __future__ import annotations

import torch
from torch import Tensor


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Losses and log-sum-exps are float32, or float64 when the inputs are."""
    return torch.promote_types(dtype, torch.float32)


def autocast(tensor: Tensor) -> Tensor:
    """The tensor as a built-in matrix product would take it: in autocast's dtype if that is on.

    For operations that autocast does not know. It never touches float64, so neither does this.
    """
    device = tensor.device.type
    if device == "meta" or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
