"""Out of memory: which setting to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zipflm.config import Config
from zipflm.training.distributed import Process
from zipflm.training.parallel import shards


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the host in torch's allocator, ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def model_explained(config: Config, process: Process) -> Iterator[None]:
    """While the model is put on its device: ValueError if it does not fit there."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        is_sharded = shards(process, config.training.parallel)
        remedy = "use more of them" if is_sharded else "shard it with training.parallel=fsdp"
        raise ValueError(
            f"{config.name}: no room for its {config.num_params():,} parameters on "
            f"{process.world_size} device(s); lower decoder.num_layers or decoder.dim, or {remedy}"
        ) from None


def explanation(config: Config) -> str:
    """What to change if an update does not fit."""
    tokens = config.batches.tokens
    remedy = (
        f"batches.tokens={tokens}: no room for a batch of that size; lower it, for example to "
        f"{tokens // 2}: gradients are then accumulated, and training.tokens_per_update stays the "
        "same"
    )
    if config.training.recompute != "layer":
        remedy += (
            "; or set training.recompute=layer, which keeps far less of every layer for the "
            "backward pass and computes it again, in about a fifth more time"
        )
    return remedy
