"""The precisions of matrix products, and the context in which a model runs at one of them."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]


def autocast(precision: Precision, device: torch.device | str) -> torch.autocast:
    """Matrix products at this precision; weights, statistics and sums stay in float32.

    >>> with autocast("bfloat16", "cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    # torch wants a 16-bit type even where autocast is off.
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=precision != "float32")


def dtype_of_sums(device: torch.device | str) -> torch.dtype:
    """What long sums are added up in: float64, which Apple's GPUs do not have."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64
