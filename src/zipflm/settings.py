"""Read and write records (frozen dataclasses) as JSON, and apply `key=value` overrides.

Fields are plain values, string enums, tuples, mappings, other dataclasses, or unions of
dataclasses, in which the key `kind` holds the name of the class unless it is the default one.
Reading is strict: an unknown, missing or wrongly typed field is an error that names the field.
Writing does not use pydantic, which would write 4 in a float field as 4.0. Numbers that are not
finite are written as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from zipflm.field_help import describe_type, field_types, fields_of, kinds_of, options_of
from zipflm.messages import quoted, read_file, unquoted
from zipflm.storage import atomic_write_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class UnknownKey(ValueError):
    """An override of a field that does not exist."""

    def __init__(self, key: str, hint: str) -> None:
        super().__init__(f"unknown key {unquoted(key)}: {hint}")
        self.key = key


def to_dict(record: Any) -> dict[str, Any]:
    """Convert a record to a nested dictionary of plain JSON values."""
    cls: Any = type(record)
    hints = field_types(cls)
    return {f.name: _to_plain(getattr(record, f.name), hints[f.name]) for f in fields(record)}


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Inverse of `to_dict`. `where` is a prefix for field names in errors."""
    record: T = parse(cls, values, where)
    return record


def write_record(path: Path, record: Any, hint: Any = None) -> None:
    """Write a record atomically. `hint` is the union it will be read as, if any."""
    atomic_write_text(path, as_json(record, hint) + "\n")


def as_json(record: Any, hint: Any = None, indent: int | None = 1) -> str:
    """Convert a record to the JSON that `write_record` writes."""
    return json.dumps(_to_plain(record, hint), indent=indent, allow_nan=False)


def read_record(cls: type[T], path: Path) -> T:
    """Read a record from a file. Raises a ValueError that names the file and the field."""
    record: T = read_value(cls, path)
    return record


def read_value(hint: Any, path: Path) -> Any:
    """Like `read_record`, for any type, such as a union of records or a mapping."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    try:
        return parse(hint, load_object(data))
    except ValueError as error:
        raise ValueError(f"{path}: damaged or from another release: {error}") from None


def load_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse(hint: Any, value: Any, where: str = "", *, strict: bool = True) -> Any:
    """Convert a JSON value to the type `hint`.

    Raises a ValueError that names the field and the problem; `where` is a prefix for field names.
    Without `strict`, numbers can be strings, as on a command line.
    """
    from pydantic import ValidationError

    adapter = _adapter(hint)
    try:
        if strict:
            # As JSON, because strict mode does not convert Python lists to tuples.
            return adapter.validate_json(json.dumps(value), strict=True)
        return adapter.validate_python(value)
    except ValidationError as error:
        raise _to_value_error(error, where) from None


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of all fields that have one."""
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    return values


def _to_plain(value: Any, hint: Any) -> Any:
    if is_dataclass(value):
        is_named = kinds_of(hint) and not getattr(value, "is_default_kind", False)
        return ({"kind": type(value).__name__} if is_named else {}) | to_dict(value)
    if isinstance(value, tuple):
        tuples = [option for option in options_of(hint) if get_origin(option) is tuple]
        inner = get_args(tuples[0]) if tuples else (None, ...)
        hints = inner if inner[-1] is not ... else (inner[0],) * len(value)
        return [_to_plain(item, item_hint) for item, item_hint in zip(value, hints, strict=True)]
    if isinstance(value, Mapping):
        _, inner_hint = get_args(options_of(hint)[0]) or (None, None)
        return {key: _to_plain(item, inner_hint) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    if is_dataclass(hint):
        cls: Any = hint
        return TypeAdapter(with_config(config)(cls))
    return TypeAdapter(hint, config=config)


def _to_value_error(error: ValidationError, where: str) -> ValueError:
    """Convert the most relevant of pydantic's errors to `field=value: problem`."""
    # Prefer errors about unknown fields, because a misspelled field is also reported as missing. In
    # a union, the deepest error belongs to the intended type.
    details = max(
        error.errors(include_url=False),
        key=lambda item: (item["type"] == "unexpected_keyword_argument", len(item["loc"])),
    )
    # Leave out the names of classes in unions.
    key = where + ".".join(part for part in map(str, details["loc"]) if not part[:1].isupper())
    match details["type"]:
        case "unexpected_keyword_argument":
            return ValueError(f"unknown key {unquoted(key)}")
        case "value_error":  # from __post_init__; starts with the name of the field
            prefix = f"{key}." if key and key != where else key
            return ValueError(f"{prefix}{details['ctx']['error']}")
        case "missing":
            return ValueError(f"{key}: missing")
    problem = details["msg"].replace("Input should be", "must be")
    return ValueError(f"{key}={quoted(details['input'])}: {problem}" if key else problem)


_Assignment = tuple[list[str], str]
"""The parts of a key, and the text of its value."""


def override(config: T, assignments: Iterable[str]) -> T:
    """Apply assignments such as `decoder.dim=512`. The last assignment of a key wins.

    All assignments are applied together, so that fields that must match can change in one call.
    `training.optimizer=AdamW` selects another class of a union. Fields that both classes have keep
    their values, but a default of the old class is replaced by that of the new one.
    """
    pairs: list[_Assignment] = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{quoted(assignment)}: write an override as key=value, e.g. decoder.dim=512"
            )
        pairs.append((key.split("."), text))
    changed: T = _build(type(config), _values(config), pairs, "", config)
    return changed


def keys_like(name: str, known: Sequence[str]) -> list[str]:
    """Return the keys whose last part is the most similar to that of `name`, or ends in it.

    >>> known = ["decoder.dim", "decoder.ffn_dim", "decoder.num_layers"]
    >>> keys_like("dim", known), keys_like("num_layer", known)
    (['decoder.dim', 'decoder.ffn_dim'], ['decoder.num_layers'])
    """
    last = name.rpartition(".")[2][:200]
    ends = {key: key.rpartition(".")[2] for key in known}
    close = get_close_matches(last, ends.values(), n=1, cutoff=0.75)
    return [key for key, end in ends.items() if end in close or end.endswith(f"_{last}")]


def _build(
    cls: Any, values: dict[str, Any], pairs: Sequence[_Assignment], where: str, config: Any
) -> Any:
    """Construct `cls` from values and overrides. `config` is the full config, for suggestions."""
    hints = field_types(cls)
    for name in dict.fromkeys(path[0] for path, _ in pairs):
        key = where + name
        if name not in hints:
            path = next(path for path, _ in pairs if path[0] == name)
            unknown = where + ".".join(path)
            known = [field.key for field in fields_of(config)]
            guesses = [other for other in keys_like(unknown, known) if other != unknown]
            fields_here = ", ".join(where + field for field in hints)
            hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"known: {fields_here}"
            raise UnknownKey(unknown, hint)
        direct = [text for path, text in pairs if path == [name]]
        inner = [(path[1:], text) for path, text in pairs if path[0] == name and len(path) > 1]
        if is_dataclass(values.get(name)):
            values[name] = _nested(hints[name], values[name], direct, inner, key, config)
        elif inner:
            full_key = ".".join([key, *inner[0][0]])
            raise ValueError(f"{unquoted(full_key)}: {key} has no fields; set it directly")
        else:
            values[name] = parse_text(hints[name], direct[-1], key)
    for name in hints:
        if name not in values and name not in defaults(cls):
            key = where + name
            raise ValueError(f"{key}: missing, and {cls.__name__} needs it; add {key}=...")
    try:
        return cls(**values)
    except ValueError as error:  # from __post_init__; starts with the name of the field
        raise ValueError(f"{where}{error}") from None


def _nested(
    hint: Any,
    record: Any,
    direct: Sequence[str],
    inner: Sequence[_Assignment],
    key: str,
    config: Any,
) -> Any:
    """Return the new value of a field that holds a dataclass. The last of the `direct` assignments
    selects a class of a union; `inner` ones change its fields."""
    cls: Any = type(record)
    values, kinds = _values(record), kinds_of(hint)
    for text in direct[-1:]:
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
    return _build(cls, values, inner, f"{key}.", config)


def _values(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def parse_text(hint: Any, text: str, key: str) -> Any:
    try:
        return parse(hint, _split(hint, text), key, strict=False)
    except ValueError:
        raise ValueError(f"{key}={quoted(text)}: expected {describe_type(hint)}") from None


def _split(hint: Any, text: str) -> Any:
    """Split the text of an override into nested lists if the type has tuples: 0.3:128,0.8:256 is a
    list of pairs."""
    tuples = [option for option in options_of(hint) if get_origin(option) is tuple]
    if text == "none" and type(None) in get_args(hint):
        return None
    if not tuples:
        return text
    inner = get_args(tuples[0])
    separator = "," if inner[-1] is ... else ":"
    parts = [] if text == "none" else text.strip("()[]").split(separator)
    return [_split(inner[0], part.strip()) for part in parts if part.strip()]
