"""Errors that name the field, its value and the remedy."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from zipflm.quoting import quoted

LARGEST = 2**31 - 1
"""Of sizes and counts: no device holds more, and beyond it positions in a text overflow."""


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not condition:
        raise ValueError(f"{field}={quoted(value)}: {remedy}")


def require_fraction(field: str, value: float) -> None:
    """A dropout rate: 0 or more, below 1."""
    require(0 <= value < 1, field, value, "a dropout rate lies in [0, 1)")


def require_positive(**values: int) -> None:
    """Every size, given by its field's name, is at least 1 and at most `LARGEST`."""
    for name, value in values.items():
        require(value >= 1, name, value, "must be at least 1")
        require(value <= LARGEST, name, value, f"must be at most {LARGEST}")


def require_count(**values: int) -> None:
    """The same for what may be 0."""
    for name, value in values.items():
        require(value >= 0, name, value, "must be 0 or more")
        require(value <= LARGEST, name, value, f"must be at most {LARGEST}")


def require_above_zero(**values: float) -> None:
    """Every number, given by its field's name, is positive and finite."""
    for name, value in values.items():
        require(0 < value < math.inf, name, value, "must be a finite number above 0")


def require_not_negative(**values: float) -> None:
    """The same for what may be 0."""
    for name, value in values.items():
        require(0 <= value < math.inf, name, value, "must be a finite number, 0 or more")


def require_choices(config: Any) -> None:
    """Every field of a Literal type holds one of its values, which Python itself does not check."""
    for name, choices in _choices(type(config)).items():
        value = getattr(config, name)
        require(value in choices, name, value, f"choose from {', '.join(map(str, choices))}")


def _choices(cls: type) -> dict[str, tuple[Any, ...]]:
    if cls not in _CHOICES:
        hints = get_type_hints(cls).items()
        literals = {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}
        _CHOICES[cls] = literals
    return _CHOICES[cls]


_CHOICES: dict[type, dict[str, tuple[Any, ...]]] = {}
"""By class: Python works out types anew whenever it is asked, which is slow."""
