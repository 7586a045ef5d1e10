"""Dotted overrides, as they are typed on a command line, as typed values of any config.

`decoder.num_layers=8` becomes a number because the field is one; an unknown key is refused with the
closest known one. Works on any frozen dataclass; `records` knows how such values are kept.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from zipflm.quoting import quoted, unquoted
from zipflm.records import UnknownKey as UnknownKey
from zipflm.records import construct, defaults, field_types, parse, type_name

T = TypeVar("T")

_LONGEST_NAME = 200
"""Characters; comparing a longer one with those that are known takes time, and none is meant."""


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
                f"{quoted(assignment)}: write an override as key=value, e.g. decoder.dim=512"
            )
        pairs.append((key.split("."), text))
    tree, known = _Node.of(config), keys_of(config)
    # Variants first, and outer ones before inner ones: they decide which fields there are.
    outer_first = sorted(pairs, key=lambda pair: len(pair[0]))
    chosen = [pair for pair in outer_first if tree.choose(*pair)]
    for path, text in pairs:
        if (path, text) not in chosen:
            tree.set(path, text, known)
    changed: T = tree.build()
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
    """Keys that end as `name` does, or else the one that looks most like it.

    >>> known = ["decoder.dim", "input.dim", "decoder.num_layers"]
    >>> keys_like("dim", known), keys_like("num_layer", known)
    (['decoder.dim', 'input.dim'], ['decoder.num_layers'])
    """
    known = list(known)
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    if same or len(name) > _LONGEST_NAME:
        return same
    by_last = {key.rpartition(".")[2]: key for key in reversed(known)}
    close = get_close_matches(last, by_last, n=1, cutoff=0.75)
    return [by_last[each] for each in close]


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
        own, names = defaults(self.cls), {f.name for f in fields(cls)}
        self.values = {
            name: value
            for name, value in self.values.items()
            if name in names and (name not in own or own[name] != value)
        }
        self.cls = cls

    def set(self, path: list[str], text: str, known: Sequence[str]) -> None:
        """Set the field at `path`; `known` are the keys of the whole, for whoever looks for one in
        the wrong place."""
        name, *rest = path
        names = [f.name for f in fields(self.cls)]
        key = self.where + name
        if name not in names:
            fields_here = [self.where + field for field in names]
            meant = [] if rest else keys_like(key, known)
            raise UnknownKey(key, fields_here, ".".join([key, *rest]), meant)
        inner = self.values.get(name)
        if rest:
            if not isinstance(inner, _Node):
                whole = ".".join([key, *rest])
                raise ValueError(
                    f"{unquoted(whole)}: {key} has no fields of its own; set it directly"
                )
            inner.set(rest, text, known)
        elif isinstance(inner, _Node):
            known = ", ".join(inner.where + f.name for f in fields(inner.cls))
            kinds = ", ".join(_variants(self.cls).get(name, {}))
            hint = f"choose {kinds}, or set" if kinds else "set"
            raise ValueError(f"{key}={quoted(text)}: {hint} one of its fields: {known}")
        else:
            self.values[name] = _from_text(field_types(self.cls)[name], text, key)

    def build(self) -> Any:
        values = {
            name: value.build() if isinstance(value, _Node) else value
            for name, value in self.values.items()
        }
        return construct(self.cls, values, self.where)


def _variants(cls: type) -> dict[str, dict[str, type]]:
    """The fields that hold one of several dataclasses, with these by name."""
    options = {name: get_args(hint) for name, hint in field_types(cls).items()}
    return {
        name: {option.__name__: option for option in kinds}
        for name, kinds in options.items()
        if len(kinds) > 1 and all(map(is_dataclass, kinds))
    }


def _from_text(hint: Any, text: str, where: str) -> Any:
    """The text of an override as the type `hint`."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and type(None) in options:
        if text == "none":
            return None
        (hint,) = (option for option in options if option is not type(None))
        return _from_text(hint, text, where)
    if origin in (Union, types.UnionType):  # a value, or several of its kind
        scalar, several = options
        return _from_text(several if "," in text else scalar, text, where)
    if origin is tuple:
        return _tuple_from_text(options, text, where)
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return parse(hint, text, where)
    return _scalar_from_text(hint, text, where)


def _tuple_from_text(options: tuple[Any, ...], text: str, where: str) -> tuple[Any, ...]:
    # A tuple inside a tuple is written with colons: 0.3:128,0.8:256.
    separator = "," if options[-1] is Ellipsis else ":"
    parts = [] if text == "none" else text.strip("()[]").split(separator)
    parts = [part.strip() for part in parts if part.strip()]
    if options[-1] is Ellipsis:
        return tuple(_from_text(options[0], part, where) for part in parts)
    if len(options) != len(parts):
        raise ValueError(f"{where}={quoted(text)}: expected {len(options)} values")
    return tuple(_from_text(o, part, where) for o, part in zip(options, parts, strict=True))


def _scalar_from_text(hint: type, text: str, where: str) -> Any:
    if hint is str:
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{where}={quoted(text)}: write true or false")
        return text.lower() == "true"
    try:
        # Python would take the digits of any script.
        number = hint(text.encode("ascii").decode())
    except ValueError:
        raise ValueError(f"{where}={quoted(text)}: expected {type_name(hint)}") from None
    if not math.isfinite(number if hint is float else 0):
        raise ValueError(f"{where}={quoted(text)}: expected a finite number")
    return number
