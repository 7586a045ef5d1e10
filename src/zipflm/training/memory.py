"""Out of memory, explained: which setting to lower, and to which value, found by trying."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.training import step
from zipflm.training.distributed import Process
from zipflm.training.parallel import shards
from zipflm.training.setup import accumulation
from zipflm.training.step import Learner

_MOST_TRIES = 8


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
        share = f"{config.num_params():,} parameters"
        remedy = "use several devices with training.parallel=fsdp"
        if shards(process, config.training.parallel):
            share += f" over {process.world_size} processes"
            remedy = "use more of them"
        raise ValueError(
            f"{config.name}: no room for its {share}; lower decoder.num_layers or decoder.dim, or "
            f"{remedy}"
        ) from None


def explanation(error: RuntimeError, config: Config, learner: Learner) -> str:
    """What to change. The learner is of no use afterwards: it has been trained on nonsense."""
    # The frames in which it failed still hold the activations.
    traceback.clear_frames(error.__traceback__)
    start = f"batches.tokens={config.batches.tokens}: no room for a batch of that size (tried it)"
    # The other processes are waiting for this one and cannot take part in a trial.
    can_try = learner.process.world_size == 1
    for size in _smaller_sizes(config, learner.process):
        if not can_try or _fits(learner, size, config.batches.block):
            proof = "which was tried too and fits" if can_try else "which could not be tried"
            return (
                f"{start}; lower batches.tokens to {size}, {proof}: gradients are then "
                f"accumulated, and training.tokens_per_update stays the same{_or_recompute(config)}"
            )
    return (
        f"{start}; lower batches.tokens and batches.block (now {config.batches.block}), make the "
        "model smaller, or spread it over several devices with training.parallel=fsdp"
        f"{_or_recompute(config)}"
    )


def _or_recompute(config: Config) -> str:
    if config.training.recompute == "layer":
        return ""
    return (
        "; or set training.recompute=layer, which keeps far less of every layer for the backward "
        "pass and computes it again, in about a fifth more time"
    )


def _smaller_sizes(config: Config, process: Process) -> Iterator[int]:
    """Half of `batches.tokens`, half of that, and so on, where the rest of the config allows it."""
    size = config.batches.tokens
    for _ in range(_MOST_TRIES):
        size //= 2
        try:
            smaller = replace(config, batches=replace(config.batches, tokens=size))
            accumulation(smaller, process)
        except ValueError:
            continue
        yield size


def _fits(learner: Learner, size: int, block: int) -> bool:
    for optimizer in learner.optimizers:
        optimizer.zero_grad(set_to_none=True)
    if learner.process.device.type == "cuda":
        torch.cuda.empty_cache()
    block = min(size, block)
    words = torch.full((size // block, block), 4, device=learner.process.device)
    try:
        step.update(learner, [Batch(words, words, torch.ones_like(words, dtype=torch.bool))])
        if words.is_cuda:
            torch.cuda.synchronize(words.device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
