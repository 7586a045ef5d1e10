"""Bounds of config fields, and schemas for unions of configs in JSON.

pydantic is imported only when a file or an override is parsed, so that layers work without it.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from zipflm.messages import quoted


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"{field}={quoted(value)}: {remedy}")


@dataclass(frozen=True)
class Bound:
    """A condition on a field and the message if it does not hold, as metadata of the field's
    type."""

    holds: Callable[[Any], bool]
    remedy: str


PositiveInt = Annotated[int, Bound(lambda n: n >= 1, "must be at least 1")]
NonNegativeInt = Annotated[int, Bound(lambda n: n >= 0, "must be 0 or more")]
FractionBelowOne = Annotated[float, Bound(lambda x: 0 <= x < 1, "must be in [0, 1)")]
Fraction = Annotated[float, Bound(lambda x: 0 <= x <= 1, "must be a fraction, 0 to 1")]
PositiveFraction = Annotated[float, Bound(lambda x: 0 < x <= 1, "must be above 0 and at most 1")]
PositiveFloat = Annotated[
    float, Bound(lambda x: 0 < x < math.inf, "must be a finite number above 0")
]
NonNegativeFloat = Annotated[
    float, Bound(lambda x: 0 <= x < math.inf, "must be a finite number, 0 or more")
]


class Checked:
    """Base class of dataclasses that check the `Bound` or `Literal` in the type of each field."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, bound in _bounds(kind).items():
            try:
                holds = bound.holds(getattr(self, name))
            except TypeError:  # a value of another type
                holds = False
            self.require(name, holds, bound.remedy)

    def require(self, field: str, condition: bool, remedy: str) -> None:
        """Raise ValueError unless the condition holds. `field` can be a path (`input.sparse`)."""
        if not condition:
            require(False, field, operator.attrgetter(field)(self), remedy)


@cache
def _bounds(cls: Any) -> dict[str, Bound]:
    bounds: dict[str, Bound] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if get_origin(hint) is Literal:
            choices = get_args(hint)
            remedy = f"choose from {', '.join(map(str, choices))}"
            bounds[name] = Bound(partial(operator.contains, choices), remedy)
        for bound in getattr(hint, "__metadata__", ()):
            if isinstance(bound, Bound):
                bounds[name] = bound
    return bounds


class ByKind:
    """Marks a union of dataclasses that JSON distinguishes by the key `kind`. A class with
    `is_default_kind` is used if the key is missing."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def without_kind(values: Any) -> str:
            if isinstance(values, dict):
                values = {name: values[name] for name in values if name != "kind"}
            return json.dumps(values)

        choices: dict[Any, Any] = {
            # Convert back to JSON, because strict mode accepts lists as tuples only in JSON.
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
