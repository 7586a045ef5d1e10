"""Errors that name the field, its value and the remedy."""

from __future__ import annotations


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"{field}={value!r}: {remedy}")


def require_fraction(field: str, value: float) -> None:
    require(0 <= value < 1, field, value, "a dropout rate lies in [0, 1)")


def require_positive(**values: int) -> None:
    for name, value in values.items():
        require(value >= 1, name, value, "must be at least 1")
