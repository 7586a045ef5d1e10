"""The fields of a config for people: key, value as an override has it, type, and what it is for.

What a field is for is the string below it in its class, which Python throws away; it is read from
the source, and left out where there is none.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from zipflm.records import field_types, type_name


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
    """Every field in the order of the config; one that holds other fields comes before them if it
    can be chosen, by its type, and else not at all."""
    helps, hints = field_docs(type(config)), field_types(type(config))
    for field in fields(config):
        value, key, hint = getattr(config, field.name), where + field.name, hints[field.name]
        if not is_dataclass(value):
            plain = value.value if isinstance(value, Enum) else value
            kind, text = in_words(hint), as_override(value)
            yield FieldHelp(key, plain, text, kind, helps.get(field.name, ""))
            continue
        if len(get_args(hint)) > 1:
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
    """A type as somebody needs to know it who writes a value.

    >>> in_words(int), in_words(Literal["ddp", "fsdp"]), in_words(tuple[int, ...])
    ('a whole number', 'ddp or fsdp', 'numbers with commas')
    """
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _either(options)
    if origin in (Union, types.UnionType):
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


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field, on one line; of fields that have one."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            found |= _own_docs(base)
    return found


def _own_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # installed without sources
        return {}
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, doc in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                found[field.target.id] = " ".join(str(doc.value.value).split())
    return found


def _first_sentence(cls: type) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split())
    return text.partition(". ")[0].rstrip(".")
