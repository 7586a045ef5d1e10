"""Configs as dictionaries and dotted overrides as typed values, strict in both directions.

Works on any frozen dataclass: a union of dataclasses is told apart by the key `kind`, which holds
the type's name; an unknown key is refused with the closest known one.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A nested dictionary of plain JSON values."""
    return {"kind": type(config).__name__} | {
        f.name: _to_plain(getattr(config, f.name)) for f in fields(config)
    }


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """The inverse of `to_dict`; `where` is the dotted name under which errors are reported."""
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names and key != "kind":
            raise ValueError(unknown_key(where + key, [where + name for name in names]))
    kind = values.get("kind", cls.__name__)
    if kind != cls.__name__:
        raise ValueError(f"{where}kind={kind!r}: expected {cls.__name__}")
    parsed = {
        name: _parse(hints[name], values[name], where + name) for name in names if name in values
    }
    try:
        return cls(**parsed)
    except TypeError as error:  # a field without default is missing
        raise ValueError(f"{where or cls.__name__}: {error}") from None


def override(config: T, assignments: Iterable[str]) -> T:
    """Apply `key.sub=value` assignments in order.

    All of one call are applied together, so that two fields that must agree can change at once.
    `training.optimizer=AdamW` chooses a variant by its type, with that type's defaults.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{assignment!r}: write an override as key=value, e.g. decoder.dim=512"
            )
        *path, last = key.split(".")
        if last in _variants(config, path) and text in (kinds := _variants(config, path)[last]):
            config = _choose_variant(config, path, last, from_dict(kinds[text], {}, key + "."))
        else:
            _insert(config, changes, key, text)
    changed: T = _replace(config, changes)
    return changed


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist."""
    known = list(known)
    close = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(known)
    return f"unknown key {key}: {hint}"


def _variants(config: Any, path: list[str]) -> dict[str, dict[str, type]]:
    """The fields at `path` that hold one of several dataclasses, with these by name."""
    for part in path:
        config = getattr(config, part, None)
    if not is_dataclass(config):
        return {}
    hints = get_type_hints(type(config))
    return {
        f.name: {option.__name__: option for option in get_args(hints[f.name])}
        for f in fields(config)
        if len(get_args(hints[f.name])) > 1 and all(map(is_dataclass, get_args(hints[f.name])))
    }


def _choose_variant(config: Any, path: list[str], last: str, value: Any) -> Any:
    if not path:
        return replace(config, **{last: value})
    inner = _choose_variant(getattr(config, path[0]), path[1:], last, value)
    return replace(config, **{path[0]: inner})


def _insert(config: Any, changes: dict[str, Any], key: str, text: str) -> None:
    *path, last = key.split(".")
    node, target, where = config, changes, ""
    for part in path:
        _require_field(node, part, where)
        node = getattr(node, part)
        where += part + "."
        if not is_dataclass(node):
            raise ValueError(f"{key}: {where[:-1]} has no fields of its own; set it directly")
        target = target.setdefault(part, {})
    _require_field(node, last, where)
    if is_dataclass(getattr(node, last)):
        inner = ", ".join(f"{key}.{f.name}" for f in fields(getattr(node, last)))
        kinds = ", ".join(_variants(node, []).get(last, {}))
        hint = f"choose {kinds}, or set" if kinds else "set"
        raise ValueError(f"{key}={text}: {hint} one of its fields: {inner}")
    target[last] = _parse(get_type_hints(type(node))[last], text, key)


def _require_field(node: Any, name: str, where: str) -> None:
    names = [f.name for f in fields(node)]
    if name not in names:
        raise ValueError(unknown_key(where + name, [where + known for known in names]))


def _replace(config: Any, changes: Mapping[str, Any]) -> Any:
    flat = {
        name: _replace(getattr(config, name), value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return replace(config, **flat)


def _to_plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return value


def _parse(hint: Any, value: Any, where: str) -> Any:
    """`value` (from JSON, or the text of an override) as the type `hint`."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _parse_union(options, value, where)
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{where}={value!r}: choose from {', '.join(map(str, options))}")
        return value
    if origin is tuple:
        return _parse_tuple(options, value, where)
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}={value!r}: expected the fields of {_name(hint)}")
        return from_dict(hint, value, where + ".")  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        choices = [member.value for member in hint]
        if value not in choices:
            raise ValueError(f"{where}={value!r}: choose from {', '.join(choices)}")
        return hint(value)
    return _parse_scalar(hint, value, where)


def _parse_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in options:
        if value is None or value == "none":
            return None
        options = tuple(option for option in options if option is not type(None))
        if len(options) == 1:
            return _parse(options[0], value, where)
    kinds = {option.__name__: option for option in options}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in kinds:
        raise ValueError(f"{where}: kind={kind!r}: choose from {', '.join(kinds)}")
    return _parse(kinds[kind], value, where)


def _parse_tuple(options: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        # A tuple inside a tuple is written with colons: 0.3:128,0.8:256.
        separator = "," if options[-1] is Ellipsis else ":"
        value = [] if value == "none" else value.strip("()[]").split(separator)
        value = [part for part in value if part.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}={value!r}: expected a list, e.g. {where}=20000,60000")
    if options[-1] is Ellipsis:
        return tuple(_parse(options[0], item, where) for item in value)
    if len(options) != len(value):
        raise ValueError(f"{where}={value!r}: expected {len(options)} values")
    return tuple(_parse(o, item, where) for o, item in zip(options, value, strict=True))


def _parse_scalar(hint: type, value: Any, where: str) -> Any:
    if hint is bool:
        known = {"true": True, "false": False, True: True, False: False}
        key = value.lower() if isinstance(value, str) else value
        if isinstance(key, str | bool) and key in known:
            return known[key]
        raise ValueError(f"{where}={value!r}: write true or false")
    accepted = (str, int, float) if hint is not str else (str,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise ValueError(f"{where}={value!r}: expected {_name(hint)}")
    try:
        text = value.replace("_", "").strip() if isinstance(value, str) and hint is int else value
        number = hint(text)
    except ValueError:
        raise ValueError(f"{where}={value!r}: expected {_name(hint)}") from None
    if hint is int and isinstance(value, float) and value != number:
        raise ValueError(f"{where}={value!r}: expected a whole number")
    return number


def _name(hint: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint.__name__))
