"""Warnings before a run, and which setting to lower when memory runs out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from zipflm.config import Config, CosineCycles
from zipflm.training.distributed import Process
from zipflm.training.metrics import flops_per_token
from zipflm.training.parallel import shards
from zipflm.training.schedule import learning_rate


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


_LONG = 3600.0
"""Seconds from which a run without a GPU gets a warning."""
_SHARE_OF_PEAK = 0.25
"""What a training step reaches of the speed of a plain matrix product. Rough: on the one machine
that was tried, busy with other work, models of `tiny` and `demo` reached 0.08 to 0.24 of it with
one thread, and less with two."""
_SIDE = 1024
_STILL_HIGH = 0.2
"""Share of the height of a cycle below which a learning rate has come down."""
_RISE = 1.5
"""Factor by which a learning rate may grow from one update to the next without a warning."""


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


def doubts(config: Config, done: int = 0, held: Config | None = None) -> Iterator[str]:
    """What is doubtful about a run's schedule. `held` is the config with which its first `done`
    updates were made, if there were any."""
    training = config.training
    if done and held is not None:
        yield from _new_start(config, held, done)
    if isinstance(training.schedule, CosineCycles):
        yield from _end_of_cycles(training.schedule, training.max_updates)


def _end_of_cycles(schedule: CosineCycles, max_updates: int) -> Iterator[str]:
    warmup = schedule.warmup_updates
    if max_updates <= warmup:
        yield (
            f"training.max_updates={max_updates}: the run ends within the warm-up, which takes "
            f"{warmup:,} updates, before the learning rate is as high as it should be; raise it, "
            "or lower training.schedule.warmup_updates"
        )
        return
    start, length = warmup, schedule.first_cycle
    while start + length < max_updates:
        start, length = start + length, 2 * length
    height = learning_rate(schedule, start, max_updates)
    last = learning_rate(schedule, max_updates - 1, max_updates)
    if height > 0 and last > _STILL_HIGH * height:
        before = f"{start:,} or " if start > warmup else ""
        yield (
            f"training.max_updates={max_updates}: the run ends inside a cycle, with the learning "
            f"rate at {last / height:.0%} of that cycle's height; a cycle ends after "
            f"{before}{start + length:,} updates; to end sooner, lower "
            "training.schedule.first_cycle"
        )


def _new_start(config: Config, held: Config, done: int) -> Iterator[str]:
    new, old = config.training, held.training
    before = learning_rate(old.schedule, done - 1, old.max_updates)
    after = learning_rate(new.schedule, done, new.max_updates)
    # A run that was interrupted may have been about to begin a cycle, or to warm up further.
    planned = learning_rate(old.schedule, done, old.max_updates) if done < old.max_updates else 0.0
    if after <= _RISE * max(before, planned):
        return
    yield (
        f"going on after update {done:,} raises the learning rate again, to {after:.2g} of its "
        f"full height from {before:.2g}: the loss gets worse until the rate has come down"
    )
