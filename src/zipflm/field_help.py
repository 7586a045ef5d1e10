"""Types, documentation and override syntax of the fields of configs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@cache
def field_types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union except None, or only the type itself if it is not a union."""
    if get_origin(hint) is Annotated:
        return options_of(get_args(hint)[0])
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    kinds = (options_of(option) for option in get_args(hint) if option is not type(None))
    return tuple(option for options in kinds for option in options)


def kinds_of(hint: Any) -> dict[str, type]:
    """Return the classes of a union of dataclasses by name. Empty for any other type."""
    options = options_of(hint)
    is_union = len(options) > 1 and all(map(is_dataclass, options))
    return {option.__name__: option for option in options} if is_union else {}


@dataclass(frozen=True)
class FieldHelp:
    """A field of a config or of a nested config."""

    key: str
    value: Any
    text: str
    """The value in the syntax of overrides."""
    type: str
    help: str

    @property
    def assignment(self) -> str:
        return f"{self.key}={self.text}"


def fields_of(config: Any, where: str = "") -> Iterator[FieldHelp]:
    """Yield all fields of a config and its nested configs in order. A nested config itself is only
    included if its type is a union."""
    cls: Any = type(config)
    helps, hints = field_docs(cls), field_types(cls)
    for field in fields(config):
        value, key, hint = getattr(config, field.name), where + field.name, hints[field.name]
        if not is_dataclass(value):
            kind, text = describe_type(hint), as_override(value)
            yield FieldHelp(key, value, text, kind, helps.get(field.name, ""))
            continue
        if kinds_of(hint):
            name, purpose = type(value).__name__, _first_sentence(type(value))
            yield FieldHelp(key, name, name, describe_type(hint), purpose)
        yield from fields_of(value, f"{key}.")


def as_override(value: Any) -> str:
    """Format a value in the syntax of overrides.

    >>> as_override((4000, 14000)), as_override(((0.3, 128), (0.8, 256))), as_override(None)
    ('4000,14000', '0.3:128,0.8:256', 'none')
    """
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(
            ":".join(map(as_override, item)) if isinstance(item, tuple) else as_override(item)
            for item in value
        )
    return str(value)


def describe_type(hint: Any) -> str:
    """Describe the values that an override of this type accepts.

    >>> describe_type(int), describe_type(Literal["ddp", "fsdp"]), describe_type(tuple[int, ...])
    ('int', 'ddp or fsdp', 'comma-separated numbers')
    >>> describe_type(tuple[tuple[int, int, int], ...])
    'comma-separated groups a:b:c of integers'
    """
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _join_or(options)
    if origin in (Union, UnionType):
        return _join_or([describe_type(option) for option in options])
    if origin is tuple and get_origin(options[0]) is tuple:
        inner = get_args(options[0])
        kind = "integers" if set(inner) == {int} else "numbers"
        return f"comma-separated groups {':'.join('abcdef'[: len(inner)])} of {kind}"
    if origin is tuple:
        return "comma-separated numbers"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _join_or(hint)
    return "none" if hint is type(None) else str(getattr(hint, "__name__", hint))


def _join_or(options: Any) -> str:
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of fields, including inherited ones, each joined to a single line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except OSError:  # installed without sources
            continue
        assert isinstance(body, ast.ClassDef)
        for field, doc in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                    docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs


def _first_sentence(cls: type) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split())
    return text.partition(". ")[0].rstrip(".")
