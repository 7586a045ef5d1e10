"""Errors that name the field, its value and the remedy."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not condition:
        raise ValueError(f"{field}={value!r}: {remedy}")


def require_fraction(field: str, value: float) -> None:
    """A dropout rate: 0 or more, below 1."""
    require(0 <= value < 1, field, value, "a dropout rate lies in [0, 1)")


def require_positive(**values: int) -> None:
    """Every value, given by its field's name, is at least 1."""
    for name, value in values.items():
        require(value >= 1, name, value, "must be at least 1")


def require_choices(config: Any) -> None:
    """Every field of a Literal type holds one of its values, which Python itself does not check."""
    for name, hint in get_type_hints(type(config)).items():
        if get_origin(hint) is Literal:
            value, choices = getattr(config, name), get_args(hint)
            require(value in choices, name, value, f"choose from {', '.join(map(str, choices))}")
