"""The fields of a config for people: key, value as an override has it, type, and help.

The help is the docstring below the field, read from the source. pydantic's
`use_attribute_docstrings` does not see those of inherited fields.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from zipflm.records import field_types, kinds_of, type_name


@dataclass(frozen=True)
class FieldHelp:
    """One field of a config, somewhere in it."""

    key: str
    value: Any
    """As JSON has it."""
    text: str
    """As an override has it."""
    type: str
    help: str

    @property
    def assignment(self) -> str:
        return f"{self.key}={self.text}"


def fields_of(config: Any, where: str = "") -> Iterator[FieldHelp]:
    """Every field in the order of the config; a nested config is listed itself only if it is one
    of several types."""
    cls: Any = type(config)
    helps, hints = field_docs(cls), field_types(cls)
    for field in fields(config):
        value, key, hint = getattr(config, field.name), where + field.name, hints[field.name]
        if not is_dataclass(value):
            plain = value.value if isinstance(value, Enum) else value
            kind, text = in_words(hint), as_override(value)
            yield FieldHelp(key, plain, text, kind, helps.get(field.name, ""))
            continue
        if kinds_of(hint):
            name, purpose = type(value).__name__, _first_sentence(type(value))
            yield FieldHelp(key, name, name, in_words(hint), purpose)
        yield from fields_of(value, f"{key}.")


def as_override(value: Any) -> str:
    """A value the way `overrides` reads it.

    >>> as_override((4000, 14000)), as_override(((0.3, 128), (0.8, 256))), as_override(None)
    ('4000,14000', '0.3:128,0.8:256', 'none')
    """
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ",".join(
            ":".join(map(as_override, item)) if isinstance(item, tuple) else as_override(item)
            for item in value
        )
    return str(value)


def in_words(hint: Any) -> str:
    """A type in the words of somebody who writes a value.

    >>> in_words(int), in_words(Literal["ddp", "fsdp"]), in_words(tuple[int, ...])
    ('a whole number', 'ddp or fsdp', 'numbers with commas')
    """
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _either(options)
    if origin in (Union, UnionType):
        return _either([in_words(each) for each in options])
    if origin is tuple:
        inner = options[0]
        return "a:b with commas" if get_origin(inner) is tuple else "numbers with commas"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _either([member.value for member in hint])
    return "none" if hint is type(None) else type_name(hint)


def _either(options: Any) -> str:
    *most, last = map(str, options)
    return f"{', '.join(most)} or {last}" if most else last


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring below each field that has one, on one line; inherited fields included."""
    found: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(cls.__mro__)):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except OSError:  # installed without sources
            continue
        assert isinstance(body, ast.ClassDef)
        for field, doc in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                    found[field.target.id] = " ".join(str(doc.value.value).split())
    return found


def _first_sentence(cls: type) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split())
    return text.partition(". ")[0].rstrip(".")
