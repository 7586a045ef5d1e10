"""Precision of matrix products (autocast) and of sums."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]


def autocast(precision: Precision, device: torch.device | str) -> torch.autocast:
    """Run matrix products at this precision. Weights, statistics and sums stay in float32.

    >>> with autocast("bfloat16", "cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    # torch requires a 16-bit dtype even if autocast is disabled.
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=precision != "float32")


def dtype_of_sums(device: torch.device | str) -> torch.dtype:
    """Return the dtype for long sums: float64, or float32 on Apple GPUs, which lack float64."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64
