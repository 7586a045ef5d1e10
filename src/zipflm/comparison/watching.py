"""How closely a member is watched while it trains, which changes nothing about its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zipflm.config import Config

FEWEST_POINTS = 8
"""Of a learning curve."""
_SHARE = 0.1
"""Of the valid set, enough for the shape of a curve."""


def watched(config: Config, overrides: Sequence[str]) -> Config:
    """A config that validates often enough for a curve, on a part of the valid set, unless the user
    decides how often."""
    training = config.training
    points = training.max_updates // training.validate_every if training.validate_every else 0
    if points >= FEWEST_POINTS or any(o.startswith("training.validate_") for o in overrides):
        return config
    every = max(1, training.max_updates // (FEWEST_POINTS + 2))
    share = min(training.validate_share, _SHARE)
    return replace(config, training=replace(training, validate_every=every, validate_share=share))


def watched_alike(config: Config, other: Config) -> Config:
    """`config` with those fields of `other` that decide how and how closely watched a member is
    trained, not what comes of it."""
    theirs = other.training
    return replace(
        config,
        batches=replace(config.batches, tokens=other.batches.tokens),
        training=replace(
            config.training,
            compile=theirs.compile,
            parallel=theirs.parallel,
            tables=theirs.tables,
            report_every=theirs.report_every,
            validate_every=theirs.validate_every,
            validate_share=theirs.validate_share,
            checkpoint_every=theirs.checkpoint_every,
            max_bad_updates=theirs.max_bad_updates,
            tensorboard=theirs.tensorboard,
        ),
    )
