"""How fast a device is, and how much work a training is."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import Config, ModelConfig

# Dense bfloat16 operations per second, by a part of the device's name.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
_LONG = 3600.0
"""Seconds from which a run without a GPU gets a warning."""
_SHARE_OF_PEAK = 0.25
"""What a training step reaches of the speed of a plain matrix product. Rough: on the one machine
that was tried, busy with other work, models of `tiny` and `demo` reached 0.08 to 0.24 of it with
one thread, and less with two."""
_SIDE = 1024


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


def work(config: Config, counts: NDArray[np.int64], done: int = 0) -> float:
    """Operations of the updates that are left; `counts` [V] says how common each id is."""
    training = config.training
    left = max(training.max_updates - done, 0) * training.tokens_per_update
    return left * flops_per_token(config, counts, config.batches.block)


def slowness(operations: float, what: str) -> str | None:
    """Words about what takes more than an hour on a machine without a GPU; None otherwise."""
    if torch.cuda.is_available():
        return None
    seconds = operations / (_SHARE_OF_PEAK * cpu_speed())
    if seconds < _LONG:
        return None
    return (
        f"no GPU: {what} needs about {in_words(seconds)} here; try the presets tiny, demo or "
        "small, which are made for a CPU, or fewer updates (training.max_updates)"
    )


def load() -> str | None:
    """A warning if other processes keep this machine's cores busy; None otherwise."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy <= cores:
        return None
    return (
        f"other processes keep this machine busy (load {busy:.1f} on {cores} cores): training will "
        "be slower, and its times are not those of an idle machine"
    )


def training_speed(device: torch.device, precision: str) -> float:
    """Operations per second that training may reach on a device: a rough share of its speed in a
    matrix product, since nothing was trained yet."""
    if device.type == "cuda":
        return _SHARE_OF_PEAK * _matmul_speed(8 * _SIDE, device, getattr(torch, precision))
    return _SHARE_OF_PEAK * cpu_speed()


@cache
def cpu_speed() -> float:
    """Operations per second of a matrix product on this CPU, now: the best of a few."""
    return _matmul_speed(_SIDE, torch.device("cpu"), torch.float32)


def _matmul_speed(side: int, device: torch.device, dtype: torch.dtype) -> float:
    factor = torch.ones(side, side, device=device, dtype=dtype)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        product = factor @ factor
        product[0, 0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / max(min(seconds), 1e-9)


def in_words(seconds: float) -> str:
    """A time of which only the size is known.

    >>> in_words(7), in_words(70), in_words(400), in_words(6_000), in_words(400_000), in_words(4e6)
    ('10 seconds', '1 minute', '7 minutes', '1.7 hours', '110 hours', '46 days')
    """
    if seconds < 55:
        return f"{max(round(seconds, -1), 10):.0f} seconds"
    if seconds < 90:
        return "1 minute"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    hours = seconds / 3600
    if hours >= 200:
        return f"{float(f'{hours / 24:.2g}'):,.0f} days"
    return f"{float(f'{hours:.2g}'):g} hours"
