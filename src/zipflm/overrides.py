"""Configs as dictionaries and dotted overrides as typed values, strict in both directions.

Works on any frozen dataclass: a union of dataclasses is told apart by the key `kind`, which holds
the type's name; an unknown key is refused with the closest known one.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class UnknownKey(ValueError):
    """A key whose last part, or an earlier one, names no field."""

    def __init__(self, unknown: str, known: list[str], key: str) -> None:
        close = get_close_matches(unknown, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(known)
        super().__init__(f"unknown key {unknown}: {hint}")
        self.key = key
        """All of it, as it was written."""


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
            raise UnknownKey(where + key, [where + name for name in names], where + key)
    kind = values.get("kind", cls.__name__)
    if kind != cls.__name__:
        raise ValueError(f"{where}kind={kind!r}: expected {cls.__name__}")
    parsed = {
        name: _parse(hints[name], values[name], where + name) for name in names if name in values
    }
    return _construct(cls, parsed, where)


def override(config: T, assignments: Iterable[str]) -> T:
    """Apply `key.sub=value` assignments, of two to the same key the last.

    All of one call are applied together, in any order, so that fields that must agree can change at
    once. `training.optimizer=AdamW` chooses a variant by its type; it keeps what was set in the
    old variant, to other values than that one's defaults, and exists in the new one.
    """
    pairs: list[tuple[list[str], str]] = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{assignment!r}: write an override as key=value, e.g. decoder.dim=512"
            )
        pairs.append((key.split("."), text))
    tree = _Node.of(config)
    # Variants first, and outer ones before inner ones: they decide which fields there are.
    outer_first = sorted(pairs, key=lambda pair: len(pair[0]))
    chosen = [pair for pair in outer_first if tree.choose(*pair)]
    for path, text in pairs:
        if (path, text) not in chosen:
            tree.set(path, text)
    changed: T = tree.build()
    return changed


class _Node:
    """A dataclass being changed: its type, and its fields, which may be nodes; those that are not
    set get their defaults."""

    def __init__(self, cls: type, values: dict[str, Any], where: str = "") -> None:
        self.cls, self.values, self.where = cls, values, where

    @classmethod
    def of(cls, config: Any, where: str = "") -> _Node:
        values = {f.name: getattr(config, f.name) for f in fields(config)}
        return cls(
            type(config),
            {
                name: cls.of(value, f"{where}{name}.") if is_dataclass(value) else value
                for name, value in values.items()
            },
            where,
        )

    def choose(self, path: list[str], variant: str) -> bool:
        """Change the type of the field at `path`; False if it has none of that name."""
        name, *rest = path
        inner = self.values.get(name)
        if rest:
            return isinstance(inner, _Node) and inner.choose(rest, variant)
        kinds = _variants(self.cls).get(name, {})
        if variant not in kinds:
            return False
        if isinstance(inner, _Node) and inner.cls is not kinds[variant]:
            inner.become(kinds[variant])
        return True

    def become(self, cls: type) -> None:
        own, names = _defaults(self.cls), {f.name for f in fields(cls)}
        self.values = {
            name: value
            for name, value in self.values.items()
            if name in names and (name not in own or own[name] != value)
        }
        self.cls = cls

    def set(self, path: list[str], text: str) -> None:
        """Set the field at `path`."""
        name, *rest = path
        names = [f.name for f in fields(self.cls)]
        key = self.where + name
        if name not in names:
            fields_here = [self.where + field for field in names]
            raise UnknownKey(key, fields_here, ".".join([key, *rest]))
        inner = self.values.get(name)
        if rest:
            if not isinstance(inner, _Node):
                whole = ".".join([key, *rest])
                raise ValueError(f"{whole}: {key} has no fields of its own; set it directly")
            inner.set(rest, text)
        elif isinstance(inner, _Node):
            known = ", ".join(inner.where + f.name for f in fields(inner.cls))
            kinds = ", ".join(_variants(self.cls).get(name, {}))
            hint = f"choose {kinds}, or set" if kinds else "set"
            raise ValueError(f"{key}={text}: {hint} one of its fields: {known}")
        else:
            self.values[name] = _parse(get_type_hints(self.cls)[name], text, key)

    def build(self) -> Any:
        values = {
            name: value.build() if isinstance(value, _Node) else value
            for name, value in self.values.items()
        }
        return _construct(self.cls, values, self.where)


def _variants(cls: type) -> dict[str, dict[str, type]]:
    """The fields that hold one of several dataclasses, with these by name."""
    options = {name: get_args(hint) for name, hint in get_type_hints(cls).items()}
    return {
        name: {option.__name__: option for option in kinds}
        for name, kinds in options.items()
        if len(kinds) > 1 and all(map(is_dataclass, kinds))
    }


def _defaults(cls: type) -> dict[str, Any]:
    """The fields that need not be given, and what they then are."""
    known: dict[str, Any] = {}
    for field in fields(cls):
        if field.default is not MISSING:
            known[field.name] = field.default
        elif field.default_factory is not MISSING:
            known[field.name] = field.default_factory()
    return known


def _construct(cls: type[T], values: dict[str, Any], where: str) -> T:
    known = _defaults(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in values and field.name not in known:
            key = where + field.name
            raise ValueError(f"{key}: missing, and {cls.__name__} needs it; add {key}=...")
    return cls(**values)


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
