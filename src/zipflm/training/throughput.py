"""Speed and peak memory of devices, and the cost of training in FLOPs."""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import resource
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import Config, ModelConfig

_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Peak FLOP/s of dense bfloat16 products, by a part of the device's name."""
_LONG = 3600.0
"""Warn about runs on a CPU that take more seconds than this."""
_SHARE_OF_PEAK = 0.25
"""FLOP/s of training relative to a matrix product. A rough estimate: models of `tiny` and `demo`
reached 0.08 to 0.24 with one thread on a busy machine."""
_SIDE = 1024
"""Rows and columns of the matrices in the speed test on a CPU. A GPU uses 8 times as many."""


def device_name(device: torch.device) -> str:
    """Return the model name of a GPU or of this machine's CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        cpu_info = ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def peak_flops(device: torch.device) -> float | None:
    """Return the peak bfloat16 FLOP/s of a GPU, or None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def flops_per_token(config: ModelConfig, counts: NDArray[np.int64], block: int) -> float:
    """Return the FLOPs to train on one token. `counts` [V] is the frequency of each id."""
    total = max(int(counts.sum()), 1)

    def share(first: int, end: int) -> float:
        return float(counts[first:end].sum()) / total

    # Two operations per product, in three passes: forward, and a gradient for each factor.
    return 6.0 * config.products_per_token(share, block)


def peak_memory(device: torch.device) -> int:
    """Return the peak GPU memory that this process allocated, or its peak host memory, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, IndexError):  # Linux; ru_maxrss can be that of the parent process
        status = Path("/proc/self/status").read_text(encoding="latin-1")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Free unused objects and reset `peak_memory`, if the system supports it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        # glibc keeps freed memory, which would count as used.
        ctypes.CDLL(None).malloc_trim(0)
        # Linux: resets the peak of the resident set (man 5 proc, clear_refs).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return


def flops_left(config: Config, counts: NDArray[np.int64], done: int = 0) -> float:
    """Return the FLOPs of the remaining updates, as if all had the final block length. `counts` [V]
    is the frequency of each id."""
    training = config.training
    left = max(training.max_updates - done, 0) * training.tokens_per_update
    return left * flops_per_token(config, counts, config.batches.block)


def slow_cpu_warning(flops: float, name: str) -> str | None:
    """Return a warning if this machine has no GPU and training would take more than an hour; None
    otherwise."""
    if torch.cuda.is_available():
        return None
    seconds = flops / (_SHARE_OF_PEAK * cpu_speed())
    if seconds < _LONG:
        return None
    return (
        f"no GPU: {name} needs about {format_duration(seconds)} here; try the presets tiny, demo "
        "or small, which are made for a CPU, or fewer updates (training.max_updates)"
    )


def training_speed(device: torch.device, precision: str) -> float:
    """Estimate the FLOP/s of training from the speed of a matrix product."""
    if device.type == "cuda":
        return _SHARE_OF_PEAK * _matmul_speed(8 * _SIDE, device, getattr(torch, precision))
    return _SHARE_OF_PEAK * cpu_speed()


@cache
def cpu_speed() -> float:
    """Return the FLOP/s of a matrix product on this CPU, measured once."""
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


def format_duration(seconds: float) -> str:
    """Round and format a duration.

    >>> [format_duration(seconds) for seconds in (7, 70, 400, 6_000, 400_000, 4e6)]
    ['10 seconds', '1 minute', '7 minutes', '1.7 hours', '110 hours', '46 days']
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
