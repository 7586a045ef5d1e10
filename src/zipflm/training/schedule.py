"""Learning rate schedules.

The first update uses `learning_rate(schedule, 0, ...)`, as in the authors' code. Skipped updates
count as updates here (see `step`), but not in the authors' code.
"""

from __future__ import annotations

import math
from dataclasses import replace

from zipflm.config import Config, CosineCycles, ScheduleConfig, WarmupDecay

_MAX_FINAL_LR = 0.2
"""Warn if the last learning rate is a larger fraction of the peak than this."""


def learning_rate(schedule: ScheduleConfig, update: int, max_updates: int) -> float:
    """Return the factor for the base learning rate of every group after `update` updates.

    Nesterov's base learning rate is 1, so for it the factor is the learning rate.

    >>> [learning_rate(CosineCycles(), update, 286_000) for update in (0, 16_000, 34_000)]
    [1e-07, 1.0, 0.75]
    >>> [learning_rate(WarmupDecay(warmup=0.2, decay=0.4), update, 10) for update in (0, 1, 6, 8)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if isinstance(schedule, CosineCycles):
        return _cosine_cycles(schedule, update)
    return _warmup_decay(schedule, update, max_updates)


def stretch_schedule(config: Config, max_updates: int) -> Config:
    """Return the config with these `max_updates`, a schedule stretched to them, and no `epochs`."""
    training = config.training
    ratio = max_updates / training.max_updates
    schedule = training.schedule
    if isinstance(schedule, CosineCycles):
        schedule = replace(
            schedule,
            warmup_updates=round(schedule.warmup_updates * ratio),
            first_cycle=max(1, round(schedule.first_cycle * ratio)),
        )
    training = replace(training, max_updates=max_updates, epochs=0.0, schedule=schedule)
    return replace(config, training=training)


def high_end_warning(config: Config) -> str | None:
    """Return a warning if the run ends during warm-up or with a high learning rate."""
    schedule, updates = config.training.schedule, config.training.max_updates
    if not isinstance(schedule, CosineCycles) or not schedule.max_lr:
        return None
    last = learning_rate(schedule, updates - 1, updates) / schedule.max_lr
    if updates > schedule.warmup_updates and last < _MAX_FINAL_LR:
        return None
    return (
        f"training.max_updates={updates}: the learning rate is at {last:.0%} of its peak in the "
        f"last update; change training.schedule.warmup_updates (now {schedule.warmup_updates}) and "
        f"training.schedule.first_cycle (now {schedule.first_cycle}) so that a cycle ends with the "
        "run"
    )


def _cosine_cycles(schedule: CosineCycles, update: int) -> float:
    since = update - schedule.warmup_updates
    if since < 0:
        step = (schedule.max_lr - schedule.warmup_from) / schedule.warmup_updates
        return schedule.warmup_from + update * step
    length, scale = schedule.first_cycle, 1.0
    while since >= length:
        since, length, scale = since - length, 2 * length, scale * schedule.shrink
    low, high = scale * schedule.min_lr, scale * schedule.max_lr
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * since / length))


def _warmup_decay(schedule: WarmupDecay, update: int, max_updates: int) -> float:
    warmup, decay = schedule.warmup * max_updates, schedule.decay * max_updates
    if update + 1 < warmup:
        return (update + 1) / warmup
    left = max_updates - update
    if left >= decay:
        return 1.0
    remaining = max(left, 0) / decay
    if schedule.shape == "cosine":
        remaining = 0.5 * (1 - math.cos(math.pi * remaining))
    return schedule.final + (1 - schedule.final) * remaining
