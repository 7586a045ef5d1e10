"""How much arithmetic a token costs, what the device could do, and how much memory is used."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import CharacterInput, ModelConfig
from zipflm.model.bands import Bands

# Dense bfloat16 operations per second, by a part of the device's name.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def peak_flops(device: torch.device) -> float | None:
    """What the device can do at most, where known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def flops_per_token(config: ModelConfig, counts: NDArray[np.int64], block: int) -> float:
    """Operations to learn from one token: 6 per weight it meets, and causal attention.

    A token meets the weights of its own band only; `counts` [V] says how common each band is.
    """
    decoder = config.decoder
    weights = config.params_by_part()["decoder.layers"] + 0.0
    weights += _input_weights(config, counts)
    if config.output_bands is None:
        output = {k: n for k, n in config.params_by_part().items() if k.startswith("output.")}
        # A shared table is counted with the input, where it costs nothing, but scores here.
        weights += output.get("output.table", config.vocab_size * config.output.dim)
        weights += output.get("output.projection", 0)
    else:
        bands = config.output_bands
        weights += (bands.sizes[0] + bands.num_tails) * bands.dim
        for share, size, width in _bands(bands, counts)[1:]:
            weights += share * width * (size + bands.dim)
    # Scores and their use: 2 x 2 x D per pair, half of the pairs, three passes.
    attention = 6 * decoder.num_layers * decoder.dim * block
    return 6 * weights + attention


def _input_weights(config: ModelConfig, counts: NDArray[np.int64]) -> float:
    if config.input_bands is not None:
        bands = _bands(config.input_bands, counts)
        return sum(share * width * config.decoder.dim for share, _, width in bands)
    parts = config.params_by_part()
    if isinstance(config.input, CharacterInput):
        convolutions = parts["input.convolutions"] * config.input.max_bytes
        return float(convolutions + parts["input.highway"] + parts["input.projection"])
    return float(parts.get("input.projection", 0))


def _bands(bands: Bands, counts: NDArray[np.int64]) -> list[tuple[float, int, int]]:
    """Share of the tokens, size and width of every band."""
    total = max(int(counts.sum()), 1)
    edges = bands.edges
    return [
        (float(counts[edges[i] : edges[i + 1]].sum()) / total, size, width)
        for i, (size, width) in enumerate(zip(bands.sizes, bands.widths, strict=True))
    ]


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
