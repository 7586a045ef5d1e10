"""The fields of a request's JSON object, each checked where it is read.

Fields that nobody knows are ignored, as OpenAI's service does, but one that looks like a misspelt
known field is worth a warning: its absence changes the answer, and nothing else would tell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from zipflm.quoting import quoted
from zipflm.serving.errors import Refusal, bad_request

_MOST_FIELDS = 100
_MOST_WARNINGS = 5
_LONGEST_NAME = 40
_SIMILAR = 0.8


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds; Refusal for anything else."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise bad_request(None, "the JSON is nested too deeply", "invalid_json") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise bad_request(None, f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request(None, "the body must be a JSON object", "invalid_json")
    if len(value) > _MOST_FIELDS:
        raise bad_request(None, f"{len(value)} fields; give {_MOST_FIELDS} at most")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class Fields:
    """Typed access to an object's fields; null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise bad_request(name, f"{name}={quoted(value)}: must be a text", "invalid_type")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad_request(name, f"{name}={quoted(value)}: must be true or false")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if not is_integer(value):
            raise bad_request(name, f"{name}={quoted(value)}: must be a whole number")
        if not low <= value <= high:
            raise bad_request(name, f"{name}={quoted(value)}: must be {low} to {high}")
        return int(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_request(name, f"{name}={quoted(value)}: must be a number")
        if not (low <= value <= high and math.isfinite(value)):
            raise bad_request(name, f"{name}={quoted(value)}: must be {low:g} to {high:g}")
        return float(value)

    def refuse_unless_default(self, name: str, *defaults: Any) -> None:
        """For what this service cannot do: ignoring it would give an answer to another question."""
        value = self.get(name)
        if value is not None and value not in defaults:
            raise bad_request(
                name, f"{name}={quoted(value)}: not supported here; leave it out", "unsupported"
            )

    def warnings(self, known: Collection[str]) -> list[str]:
        """What looks misspelt."""
        found = []
        for name in self._values:
            if name in known or len(name) > _LONGEST_NAME:
                continue
            close = get_close_matches(name.lower(), known, n=1, cutoff=_SIMILAR)
            if close:
                shown = ascii(name)[1:-1]  # for a header
                found.append(f"unknown field {shown} was ignored; is it {close[0]}?")
        return found[:_MOST_WARNINGS]


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require_known_model(name: Any, known: Collection[str]) -> None:
    if name not in known:
        raise Refusal(
            404,
            f"model={quoted(name)}: no such model; this service has {', '.join(known)}",
            param="model",
            code="model_not_found",
        )
