"""What no run can be trained with, though each number of its config is a number like any other.

Found before anything is built: a learning rate that float32 cannot hold would end in the middle of
an update, a billion layers would never be built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from zipflm.config import CharacterInput, Config, require

_LARGEST = 1e18
"""Of rates, decays and norms: float32 holds the product of two of them."""
_MOST_PARAMS = 10**12
"""A hundred times the largest models of the paper's time; no machine holds so many."""
_MOST_LAYERS = 10_000
_MOST_STAGES = 100
_MOST_UPDATES = 2**31 - 1
"""What `training.max_updates` can be at most."""


def require_trainable(config: Config) -> None:
    """ValueError that names the field, if no training with this config can begin."""
    for name, value in _numbers(config.training, "training."):
        require(value <= _LARGEST, name, value, f"training computes with at most {_LARGEST:g}")
    _require_layers("decoder.num_layers", config.decoder.num_layers)
    if isinstance(config.input, CharacterInput):
        _require_layers("input.highway_layers", config.input.highway_layers)
    parts = config.params_by_part()
    largest = max(parts, key=parts.__getitem__)
    if config.num_params() > _MOST_PARAMS:
        raise ValueError(
            f"{config.name}: {config.num_params():,} parameters, {parts[largest]:,} of them in "
            f"{largest}, are more than any machine holds; make it smaller"
        )
    _require_stages(config)


def _numbers(config: Any, where: str) -> Iterator[tuple[str, float]]:
    for field in fields(config):
        value, name = getattr(config, field.name), where + field.name
        if is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, float):
            yield name, value


def _require_layers(name: str, number: int) -> None:
    require(number <= _MOST_LAYERS, name, number, f"give at most {_MOST_LAYERS:,}")


def _require_stages(config: Config) -> None:
    training = config.training
    require(
        len(training.stages) <= _MOST_STAGES,
        "training.stages",
        f"{len(training.stages):,} of them",
        f"give at most {_MOST_STAGES}",
    )
    for end, block in training.stages:
        # A short run may skip a stage; one that every run skips was mistyped.
        require(
            end * _MOST_UPDATES >= 1,
            "training.stages",
            f"{end:g}:{block}",
            "this stage ends before the first update of any run; leave it out",
        )
