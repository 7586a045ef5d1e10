"""Foreign values in messages: printable, on one line, and cut where they are long or deep.

A file or a command line can hold a book under any name, or text that moves a terminal's cursor.
"""

from __future__ import annotations

import reprlib
from typing import Any

_LONGEST = 80
"""Characters of one value."""

# Python's own repr fails on a value that is nested deeply, though not too deeply to be read, and
# spells out all of a long one.
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel = 3
_SHOWN.maxtuple = _SHOWN.maxlist = _SHOWN.maxdict = 10
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 2 * _LONGEST


def quoted(value: Any) -> str:
    r"""A value as Python writes it.

    >>> quoted("two\nlines"), quoted((1, 2)), len(quoted("x" * 1000))
    ("'two\\nlines'", '(1, 2)', 80)
    """
    return _cut(_SHOWN.repr(value))


def unquoted(name: str) -> str:
    r"""A name without quotes, unless it would be hard to tell or do harm without them.

    >>> unquoted("decoder.dim"), unquoted(""), unquoted("\x1b[2J")
    ('decoder.dim', "''", "'\\x1b[2J'")
    """
    return _cut(name) if name and name.isprintable() and name == name.strip() else quoted(name)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
