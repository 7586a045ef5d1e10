"""Errors that name the field, its value and the remedy; and how a union of configs is told apart.

Nothing here needs pydantic until a file is read: models are built without it.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from zipflm.messages import quoted


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not condition:
        raise ValueError(f"{field}={quoted(value)}: {remedy}")


def require_fraction(**values: float) -> None:
    """Every number, given by its field's name, is 0 or more and below 1."""
    for name, value in values.items():
        require(0 <= value < 1, name, value, "must lie in [0, 1)")


def require_positive(**values: int) -> None:
    """Every size, given by its field's name, is at least 1."""
    for name, value in values.items():
        require(value >= 1, name, value, "must be at least 1")


def require_count(**values: int) -> None:
    """Every count, given by its field's name, is 0 or more."""
    for name, value in values.items():
        require(value >= 0, name, value, "must be 0 or more")


def require_above_zero(**values: float) -> None:
    """Every number, given by its field's name, is positive and finite."""
    for name, value in values.items():
        require(0 < value < math.inf, name, value, "must be a finite number above 0")


def require_not_negative(**values: float) -> None:
    """Every number, given by its field's name, is finite and 0 or more."""
    for name, value in values.items():
        require(0 <= value < math.inf, name, value, "must be a finite number, 0 or more")


def require_choices(config: Any) -> None:
    """Every field of a Literal type holds one of its values, which Python itself does not check."""
    kind: Any = type(config)
    for name, choices in _choices(kind).items():
        value = getattr(config, name)
        require(value in choices, name, value, f"choose from {', '.join(map(str, choices))}")


@cache
def _choices(cls: Any) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(cls).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


class ByKind:
    """Marks a union of dataclasses of which JSON names one with the key `kind`. It may leave out
    the name of a class with `is_default_kind`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def without_kind(values: Any) -> str:
            if isinstance(values, dict):
                values = {name: values[name] for name in values if name != "kind"}
            return json.dumps(values)

        choices: dict[Any, Any] = {
            # Text again, since strict validation takes lists for tuples from JSON alone.
            cls.__name__: core_schema.no_info_before_validator_function(
                without_kind, core_schema.json_schema(handler.generate_schema(cls))
            )
            for cls in get_args(source)
        }
        defaults = [cls for cls in get_args(source) if getattr(cls, "is_default_kind", False)]
        default = defaults[0].__name__ if defaults else None

        def kind_of(values: Any) -> Any:
            return values.get("kind", default) if isinstance(values, dict) else default

        discriminator: Any = "kind" if default is None else kind_of
        return core_schema.tagged_union_schema(choices, discriminator=discriminator)
