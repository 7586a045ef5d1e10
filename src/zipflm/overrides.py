"""Dotted overrides, as typed on a command line: `decoder.num_layers=8` on any frozen dataclass.

Only the fields that are named change; pydantic turns their text into the field's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_origin

from zipflm.quoting import quoted, unquoted
from zipflm.records import UnknownKey as UnknownKey
from zipflm.records import defaults, field_types, kinds_of, options_of, parse

T = TypeVar("T")
_Assignment = tuple[list[str], str]
"""The parts of a key, and the text of its value."""


def override(config: T, assignments: Iterable[str]) -> T:
    """Apply `key.sub=value` assignments; if a key is given twice, the last one counts.

    All of one call are applied together, in any order, so that fields that must agree can change at
    once. `training.optimizer=AdamW` chooses a variant by its type; it keeps fields that the old
    variant shares with it, unless they had the old variant's defaults.
    """
    pairs: list[_Assignment] = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{quoted(assignment)}: write an override as key=value, e.g. decoder.dim=512"
            )
        pairs.append((key.split("."), text))
    changed: T = _build(type(config), _values(config), pairs, "", keys_of(config))
    return changed


def keys_of(config: Any, where: str = "") -> list[str]:
    """Every key that an override of this config may have, in the order of the fields."""
    found: list[str] = []
    for field in fields(config):
        value, key = getattr(config, field.name), where + field.name
        found.append(key)
        if is_dataclass(value):
            found += keys_of(value, f"{key}.")
    return found


def keys_like(name: str, known: Iterable[str]) -> list[str]:
    """Keys that end as `name` does, or else the closest one.

    >>> known = ["decoder.dim", "input.dim", "decoder.num_layers"]
    >>> keys_like("dim", known), keys_like("num_layer", known)
    (['decoder.dim', 'input.dim'], ['decoder.num_layers'])
    """
    by_last: dict[str, list[str]] = {}
    for key in known:
        by_last.setdefault(key.rpartition(".")[2], []).append(key)
    last = name.rpartition(".")[2][:200]
    if last in by_last:
        return by_last[last]
    close = get_close_matches(last, by_last, n=1, cutoff=0.75)
    return by_last[close[0]][:1] if close else []


def _build(
    cls: Any, values: dict[str, Any], pairs: Sequence[_Assignment], where: str, known: Sequence[str]
) -> Any:
    """A `cls` of these values and overrides; `known` are the keys of the whole config."""
    hints = field_types(cls)
    for name in dict.fromkeys(path[0] for path, _ in pairs):
        key = where + name
        if name not in hints:
            path = next(path for path, _ in pairs if path[0] == name)
            meant = keys_like(key, known) if path == [name] else []
            error = UnknownKey(key, [where + field for field in hints], meant)
            error.key = where + ".".join(path)
            raise error
        own = [text for path, text in pairs if path == [name]]
        inner = [(path[1:], text) for path, text in pairs if path[0] == name and len(path) > 1]
        if is_dataclass(values.get(name)):
            values[name] = _nested(hints[name], values[name], own, inner, key, known)
        elif inner:
            whole = ".".join([key, *inner[0][0]])
            raise ValueError(f"{unquoted(whole)}: {key} has no fields of its own; set it directly")
        else:
            values[name] = parse(hints[name], _split(hints[name], own[-1]), key, strict=False)
    for name in hints:
        if name not in values and name not in defaults(cls):
            key = where + name
            raise ValueError(f"{key}: missing, and {cls.__name__} needs it; add {key}=...")
    try:
        return cls(**values)
    except ValueError as error:  # of its own checks, which begin with the name of the field
        raise ValueError(f"{where}{error}") from None


def _nested(
    hint: Any,
    record: Any,
    own: Sequence[str],
    inner: Sequence[_Assignment],
    key: str,
    known: Sequence[str],
) -> Any:
    """A field that holds a dataclass: another variant if its `own` value names one, with the
    `inner` overrides."""
    cls: Any = type(record)
    values, kinds = _values(record), kinds_of(hint)
    for text in own[-1:]:
        if text not in kinds:
            names = ", ".join(f"{key}.{field.name}" for field in fields(cls))
            remedy = f"choose {', '.join(kinds)}, or set" if kinds else "set"
            raise ValueError(f"{key}={quoted(text)}: {remedy} one of its fields: {names}")
        if kinds[text] is not cls:
            before, cls = defaults(cls), kinds[text]
            common = field_types(cls).keys() & {
                name for name, value in values.items() if before.get(name, ...) != value
            }
            values = {name: values[name] for name in common}
    return _build(cls, values, inner, f"{key}.", known)


def _values(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _split(hint: Any, text: str) -> Any:
    """Lists and none of an override; 0.3:128,0.8:256 is a list of pairs."""
    options = options_of(hint)
    tuples = [option for option in options if get_origin(option) is tuple]
    if text == "none" and type(None) in get_args(hint):
        return None
    if not tuples or (len(options) > 1 and "," not in text):
        return text
    inner = get_args(tuples[0])
    separator = "," if inner[-1] is ... else ":"
    parts = [] if text == "none" else text.strip("()[]").split(separator)
    return [_split(inner[0], part.strip()) for part in parts if part.strip()]
