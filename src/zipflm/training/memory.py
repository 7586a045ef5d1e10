"""Out of memory, explained: which setting to lower, and to what, found out by trying."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.training import step
from zipflm.training.step import Learner

_MOST_TRIES = 8


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the host in torch's allocator, had no room left."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def model_explained(config: Config) -> Iterator[None]:
    """While the model is put on its device: ValueError if it has no room there."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"{config.name}: no room for its {config.num_params():,} parameters; lower "
            "decoder.num_layers or decoder.dim, or use several devices with training.parallel=fsdp"
        ) from None


def explanation(error: RuntimeError, config: Config, learner: Learner) -> str:
    """What to do. Uses up the learner: what it holds afterwards is of no use."""
    # The frames that failed still hold the activations.
    traceback.clear_frames(error.__traceback__)
    size, block = config.batches.tokens, config.batches.block
    start = f"batches.tokens={size}: no room for a batch of that size (tried it)"
    fits = _size_that_fits(config, learner)
    if fits is not None:
        return (
            f"{start}; lower batches.tokens to {fits}, which was tried too and fits: gradients are "
            "then accumulated, and training.tokens_per_update stays the same"
        )
    return (
        f"{start}; lower batches.tokens and batches.block (now {block}), make the model smaller, "
        "or spread it over several devices with training.parallel=fsdp"
    )


def _size_that_fits(config: Config, learner: Learner) -> int | None:
    """Half the tokens of a batch, half of that, and so on, down to one block."""
    if learner.process.world_size > 1:
        # The other processes wait in an exchange that will not come: half is a guess.
        return config.batches.tokens // 2
    size = config.batches.tokens
    for _ in range(_MOST_TRIES):
        size //= 2
        if size < max(config.batches.block, 1):
            return None
        if _fits(learner, size, config.batches.block):
            return size
    return None


def _fits(learner: Learner, size: int, block: int) -> bool:
    for optimizer in learner.optimizers:
        optimizer.zero_grad(set_to_none=True)
    if learner.process.device.type == "cuda":
        torch.cuda.empty_cache()
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
