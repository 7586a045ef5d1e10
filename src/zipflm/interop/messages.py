"""Values and names from a foreign file, made fit for a message: short, printable, on one line.

A file can hold a book under any name, or text that would move a terminal's cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

_MAX_CHARACTERS = 200
_MAX_SENTENCE = 400  # which may show a value
_MAX_ITEMS = 10


def shown(value: Any) -> str:
    r"""The value as Python would write it, cut short; of nested values only their type.

    >>> shown("\x1b[2J"), shown([1, "a", {}])
    ("'\\x1b[2J'", "[1, 'a', <dict>]")
    """
    if isinstance(value, list | tuple):
        items = [_shown_scalar(item) for item in islice(value, _MAX_ITEMS)]
        if len(value) > _MAX_ITEMS:
            items.append("...")
        inner = ", ".join(items)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(items) == 1 else f"({inner})"
    return _shown_scalar(value)


def _shown_scalar(value: Any) -> str:
    if isinstance(value, str | bytes | bytearray):
        return repr(value[:_MAX_CHARACTERS]) + "..." * (len(value) > _MAX_CHARACTERS)
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"<{type_name(value)}>"


def type_name(value: Any) -> str:
    """What kind of thing this is; for what stands for a foreign object, the object's own class."""
    name = getattr(value, "name", None)
    return plain_text(name) if isinstance(name, str) else type(value).__name__


def plain_text(text: str) -> str:
    r"""A name or a sentence, cut short, without quotes around it.

    >>> plain_text("decoder.version"), plain_text("two\nlines")
    ('decoder.version', 'two\\nlines')
    """
    if text.isprintable() and len(text) <= _MAX_SENTENCE:
        return text
    return repr(text[:_MAX_SENTENCE])[1:-1] + "..." * (len(text) > _MAX_SENTENCE)


def listed(names: Iterable[str], show: Callable[[str], str] = plain_text) -> str:
    """The first few names, as `show` writes them, and how many more there are.

    >>> listed(f"layer{i}" for i in range(12)).endswith("layer9 and 2 more")
    True
    """
    names = list(names)
    head = ", ".join(show(name) for name in names[:_MAX_ITEMS])
    more = len(names) - _MAX_ITEMS
    return f"{head} and {more:,} more" if more > 0 else head
