"""Helpers for messages: short printable forms of values, and readable OS errors.

Files and command lines can contain very long text and terminal control characters.
"""

from __future__ import annotations

import errno
import os
import reprlib
import unicodedata
from os import PathLike
from pathlib import Path
from typing import Any

_MAX_VALUE_CHARS = 80
# repr() fails on deeply nested values and shows long ones in full.
_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 10
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 2 * _MAX_VALUE_CHARS


def quoted(value: Any) -> str:
    r"""Return the repr of a value, shortened.

    >>> quoted("two\nlines"), quoted((1, 2)), len(quoted("x" * 1000))
    ("'two\\nlines'", '(1, 2)', 80)
    """
    return _shorten(_REPR.repr(value))


def unquoted(name: str) -> str:
    r"""Return a name without quotes, or quoted if it is empty, padded or not printable.

    >>> unquoted("decoder.dim"), unquoted(""), unquoted("\x1b[2J")
    ('decoder.dim', "''", "'\\x1b[2J'")
    """
    return _shorten(name) if name and name.isprintable() and name == name.strip() else quoted(name)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


_MAX_LINE_CHARS = 2_000
_KEPT_END_CHARS = 400
"""The remedy is at the end of a message, so the middle is cut."""


def one_line(text: str) -> str:
    r"""Escape control characters, including newlines, and shorten the text.

    >>> one_line("a\x1b[2Jb\nc"), len(one_line("x" * 9_999))
    ('a\\x1b[2Jb\\nc', 2000)
    """
    if len(text) > _MAX_LINE_CHARS:  # escaping never shortens, so the rest cannot be shown anyway
        text = text[:_MAX_LINE_CHARS] + text[-_MAX_LINE_CHARS:]
    escaped = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if len(escaped) <= _MAX_LINE_CHARS:
        return escaped
    return f"{escaped[: _MAX_LINE_CHARS - _KEPT_END_CHARS - 5]} ... {escaped[-_KEPT_END_CHARS:]}"


_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# Tabs, line ends, soft hyphens, and the joiners of Persian and of emoji.
_HARMLESS = "\t\n\u00ad\u200c\u200d"


def escape_controls(text: str) -> str:
    r"""Escape control characters, except tabs, line ends and those that are part of words.

    >>> escape_controls("a\x07\nb")
    'a\\x07\nb'
    """
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in _CONTROLS and c not in _HARMLESS else c
        for c in text
    )


def require_file(path: str | PathLike[str]) -> None:
    """Raise ValueError if `path` is a folder, pipe, device or broken link. It may be missing."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise ValueError(f"{os.fspath(path)}: not a file; restore or remove it")


def require_figure(path: Path) -> None:
    """Raise ValueError if figures cannot be saved in the format of this suffix."""
    from matplotlib.figure import Figure

    if path.suffix.lstrip(".") not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"{path}: unsupported file type; use .png, .svg or .pdf")


def read_file(path: Path) -> bytes:
    """Read a file. Raises ValueError if it is not a file."""
    require_file(path)
    return path.read_bytes()


_REMEDIES = {
    errno.EACCES: "permission denied; change its permissions or choose another path",
    errno.ENOSPC: "the disk is full; free some space or choose a path on another disk",
    errno.EDQUOT: "disk quota exceeded; free some space or choose a path on another disk",
    errno.ENAMETOOLONG: "the file name is too long; use a shorter one",
    errno.ENOENT: "no such file or folder; check the path",
    errno.ENOTDIR: "part of this path is a file, not a folder; check the path",
    errno.EISDIR: "is a folder, not a file; use a file",
    errno.EEXIST: "already exists; choose another name or remove it first",
}


def describe_os_error(error: OSError) -> str:
    """Return `path: problem; remedy` for a system error, or `path: problem` if no remedy is known.

    Messages of other errors are unchanged.
    """
    if error.errno is None or error.strerror is None:
        return str(error)
    # A failed rename has two names; the second is the one the user chose.
    name = error.filename2 if error.filename2 is not None else error.filename
    prefix = "" if name is None else f"{name}: "
    if error.errno not in _REMEDIES:
        return f"{prefix}{error.strerror}" if prefix else str(error)
    return f"{prefix}{_REMEDIES[error.errno]} ({error.strerror})"
