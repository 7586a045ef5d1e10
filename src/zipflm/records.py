"""Typed records and the JSON they are kept in, strict in both directions.

A record is a frozen dataclass. Its fields are plain values, enums, tuples, mappings by name, other
records, or one of several records, told apart by the key `kind`, which holds the type's name.
Reading checks every field against its type: one that is unknown, missing or of another kind is an
error that names it. JSON has no infinity, so a number that is not finite is written as null.

Records that come with the package know nothing of files; whoever reads or writes one here gets the
file's name into every error.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from zipflm.files import write_whole
from zipflm.quoting import quoted, unquoted
from zipflm.reading import read_file

T = TypeVar("T")

_LARGEST_FILE = 1 << 28
"""Bytes; a record of this package has a few thousand."""
_EXACT = 2.0**53
"""Beyond this, a floating-point number stands for several whole ones."""
_LONGEST_KEY = 200
"""Characters; comparing a longer one with those that are known takes time, and none is meant."""


class UnknownKey(ValueError):
    """A key whose last part, or an earlier one, names no field."""

    def __init__(self, unknown: str, known: list[str], key: str, meant: Sequence[str] = ()) -> None:
        """`meant` are keys that whoever wrote it may have had in mind, before all that are close
        to it among the `known` ones."""
        is_short = len(unknown) <= _LONGEST_KEY
        close = get_close_matches(unknown, known, n=1, cutoff=0.5) if is_short else []
        guesses = " or ".join(meant or close)
        hint = f"did you mean {guesses}?" if guesses else "known are " + ", ".join(known)
        super().__init__(f"unknown key {unquoted(unknown)}: {hint}")
        self.key = key
        """All of it, as it was written."""


def to_dict(record: Any) -> dict[str, Any]:
    """A nested dictionary of plain JSON values."""
    hints = field_types(type(record))
    return {f.name: _to_plain(getattr(record, f.name), hints[f.name]) for f in fields(record)}


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """The inverse of `to_dict`; `where` is the dotted name under which errors are reported."""
    hints = field_types(cls)
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in names and key != "kind":
            raise UnknownKey(f"{where}{key}", [where + name for name in names], f"{where}{key}")
    kind = values.get("kind", cls.__name__)
    if kind != cls.__name__:
        raise ValueError(f"{where}kind={quoted(kind)}: expected {cls.__name__}")
    parsed = {
        name: parse(hints[name], values[name], where + name) for name in names if name in values
    }
    return construct(cls, parsed, where)


def write_record(path: Path, record: Any, hint: Any = None) -> None:
    """The file has its old content or the record, whatever moment the process dies.

    `hint` is what it will be read as, where that is one of several types.
    """
    write_whole(path, as_json(record, hint) + "\n")


def as_json(record: Any, hint: Any = None, indent: int | None = 1) -> str:
    """A record the way its file holds it."""
    return json.dumps(_to_plain(record, hint), indent=indent, allow_nan=False)


def read_record(cls: type[T], path: Path) -> T:
    """The record that a file holds; ValueError, naming file and field, if it holds none."""
    record: T = read_value(cls, path)
    return record


def read_value(hint: Any, path: Path) -> Any:
    """The same for any type: one of several records, values by name."""
    try:
        data = read_file(path, _LARGEST_FILE)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    try:
        return parse(hint, load_object(data), "")
    except ValueError as error:
        raise ValueError(f"{path}: damaged or of another release: {error}") from None


def load_object(data: bytes | str) -> dict[str, Any]:
    """The one JSON object in `data`; ValueError for anything else."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles
        )
    except _DoubledKey:
        raise
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def field_types(cls: type) -> dict[str, Any]:
    """The type of every field."""
    if cls not in _FIELD_TYPES:
        _FIELD_TYPES[cls] = get_type_hints(cls)
    return _FIELD_TYPES[cls]


_FIELD_TYPES: dict[type, dict[str, Any]] = {}
"""By class: Python works them out anew whenever it is asked, which takes time for a long log."""


def defaults(cls: type) -> dict[str, Any]:
    """The fields that need not be given, and what they then are."""
    known: dict[str, Any] = {}
    for field in fields(cls):
        if field.default is not MISSING:
            known[field.name] = field.default
        elif field.default_factory is not MISSING:
            known[field.name] = field.default_factory()
    return known


def construct(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """The record with these fields; ValueError names one that is missing or refused."""
    known = defaults(cls)
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in values and field.name not in known:
            key = where + field.name
            raise ValueError(f"{key}: missing, and {cls.__name__} needs it; add {key}=...")
    try:
        return cls(**values)
    except ValueError as error:  # of its own checks, which begin with the name of the field
        raise ValueError(f"{where}{error}") from None


def parse(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as the type `hint`; ValueError says what was expected at `where`."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _parse_union(options, value, where)
    if origin is Literal:
        if not isinstance(value, str | int) or value not in options:
            choices = ", ".join(map(str, options))
            raise ValueError(f"{where}={quoted(value)}: choose from {choices}")
        return value
    if origin is tuple:
        return _parse_tuple(options, value, where)
    if origin in (dict, Mapping):
        return _parse_mapping(options[1], value, where)
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}={quoted(value)}: expected the fields of {type_name(hint)}")
        return from_dict(hint, value, where and where + ".")  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [member.value for member in hint]
        if value not in values:
            raise ValueError(f"{where}={quoted(value)}: choose from {', '.join(values)}")
        return hint(value)
    return _parse_scalar(hint, value, where)


def type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, str(getattr(hint, "__name__", hint)))


def _to_plain(value: Any, hint: Any) -> Any:
    if is_dataclass(value):
        kinds = [option for option in get_args(hint) if is_dataclass(option)]
        kind = {"kind": type(value).__name__} if len(kinds) > 1 else {}
        return kind | to_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        inner = get_args(_tuple_of(_without_none(hint))) or (None, ...)
        hints = inner if inner[-1] is not ... else (inner[0],) * len(value)
        return [_to_plain(item, each) for item, each in zip(value, hints, strict=True)]
    if isinstance(value, Mapping):
        _, inner_hint = get_args(_without_none(hint)) or (None, None)
        return {key: _to_plain(item, inner_hint) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _without_none(hint: Any) -> Any:
    """`T` of `T | None`; any other hint as it is."""
    options = [option for option in get_args(hint) if option is not type(None)]
    is_optional = get_origin(hint) in (Union, types.UnionType) and len(options) == 1
    return options[0] if is_optional else hint


def _tuple_of(hint: Any) -> Any:
    """`tuple[T, ...]` of `T | tuple[T, ...]`; any other hint as it is."""
    tuples = [option for option in get_args(hint) if get_origin(option) is tuple]
    return tuples[0] if get_origin(hint) in (Union, types.UnionType) and tuples else hint


def _parse_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if type(None) in options:
        if value is None:
            return None
        options = tuple(option for option in options if option is not type(None))
        if len(options) == 1:
            return parse(options[0], value, where)
    if not any(map(is_dataclass, options)):  # a value, or several of its kind
        scalar, several = options
        return parse(several if isinstance(value, list | tuple) else scalar, value, where)
    kinds = {option.__name__: option for option in options}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        place = where and where + ": "
        raise ValueError(f"{place}kind={quoted(kind)}: choose from {', '.join(kinds)}")
    return parse(kinds[kind], value, where)


def _parse_tuple(options: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}={quoted(value)}: expected a list, e.g. {where}=20000,60000")
    if options[-1] is Ellipsis:
        return tuple(parse(options[0], item, where) for item in value)
    if len(options) != len(value):
        raise ValueError(f"{where}={quoted(value)}: expected {len(options)} values")
    return tuple(parse(o, item, where) for o, item in zip(options, value, strict=True))


def _parse_mapping(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}={quoted(value)}: expected values by name")
    place = where and where + "."
    return {key: parse(hint, item, place + key) for key, item in value.items()}


def _parse_scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value)
    if hint is int and isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    if type(value) is not hint or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{where}={quoted(value)}: expected {type_name(hint)}")
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


class _DoubledKey(ValueError):
    """A key that an object has twice: one of its values would be lost without a word."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise _DoubledKey(f"{unquoted(doubled)}: is there twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
