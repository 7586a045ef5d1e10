"""How much arithmetic a token costs, what the device could do, and how much memory is used."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import ModelConfig

# Dense bfloat16 operations per second, by a part of the device's name.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def device_name(device: torch.device) -> str:
    """Model name of a GPU or of this machine's CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        facts = ""
    found = re.search(r"^model name\s*:\s*(.+)$", facts, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def peak_flops(device: torch.device) -> float | None:
    """What the device can do at most, where known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def flops_per_token(config: ModelConfig, counts: NDArray[np.int64], block: int) -> float:
    """Operations to learn from one token of a block; `counts` [V] says how common each id is."""
    total = max(int(counts.sum()), 1)

    def share(first: int, end: int) -> float:
        return float(counts[first:end].sum()) / total

    # Two operations a product, and three passes: forward, and a gradient for each of two factors.
    return 6.0 * config.products_per_token(share, block)


def peak_memory(device: torch.device) -> int:
    """Most bytes used so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` count from here on, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        # What glibc keeps for later of memory that was freed would count as used.
        ctypes.CDLL(None).malloc_trim(0)
        # Linux: sets the peak of the resident set to its present size (man 5 proc, clear_refs).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return
