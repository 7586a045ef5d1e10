"""Text for messages: foreign values quoted on one line, files read with clear errors, OS errors
in words.

A file or a command line can hold any amount of text, or characters that move a terminal's cursor.
"""

from __future__ import annotations

import errno
import os
import reprlib
from os import PathLike
from pathlib import Path
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


_LONGEST_LINE = 2_000
"""Characters of a message; the remedy stands at its end, so it is the middle that goes."""
_END = 400


def one_line(text: str) -> str:
    r"""The text with control characters, line ends among them, spelt out, and shortened.

    >>> one_line("a\x1b[2Jb\nc"), len(one_line("x" * 9_999))
    ('a\\x1b[2Jb\\nc', 2000)
    """
    if len(text) > _LONGEST_LINE:
        # What is spelt out only grows, so there is no need to look at more than this.
        text = text[:_LONGEST_LINE] + text[-_LONGEST_LINE:]
    spelt = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if len(spelt) <= _LONGEST_LINE:
        return spelt
    return f"{spelt[: _LONGEST_LINE - _END - 5]} ... {spelt[-_END:]}"


def lines(text: str) -> str:
    r"""The same for a text that we broke into lines ourselves.

    >>> lines("a\x07\nb")
    'a\\x07\nb'
    """
    return "\n".join(one_line(line) for line in text.split("\n"))


def require_file(path: str | PathLike[str]) -> None:
    """ValueError if a folder, a pipe, a device or a link to nothing stands in a file's place.

    Whether there is anything at all, opening it will tell.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise ValueError(f"{os.fspath(path)}: not a file; put the file back, or remove it")


def read_file(path: Path, most: int | None = None) -> bytes:
    """All of a file; ValueError if it is none, or has more than `most` bytes."""
    require_file(path)
    if most is not None and path.stat().st_size > most:
        raise ValueError(f"{path}: larger than {most} bytes, which no such file is")
    return path.read_bytes()


_REMEDIES = {
    errno.EACCES: "you may not read or write it; change its permissions, or name another place",
    errno.EPERM: "the system does not allow it; name another place",
    errno.EROFS: "it is on a disk that can only be read; name a place that can be written to",
    errno.ENOSPC: "the disk is full; free some space, or name a place on another disk",
    errno.EDQUOT: "your share of the disk is used up; free some space, or name another disk",
    errno.EFBIG: "files may not grow so large here; name a place on another disk",
    errno.ENAMETOOLONG: "the name is too long for a file; give a shorter one",
    errno.ENOENT: "there is no such file or folder; check the name",
    errno.ENOTDIR: "a part of this path is a file, not a folder; check the name",
    errno.EISDIR: "is a folder, where a file is expected; name a file",
    errno.EEXIST: "is there already; choose another name, or remove it first",
    errno.ELOOP: "symbolic link loop; fix the link, or use the real path",
    errno.EMFILE: "too many files are open; allow more (ulimit -n)",
    errno.EIO: "the disk or the network could not read or write it; try again, or copy it first",
}


def in_words(error: OSError) -> str:
    """What happened to which file, and what to do; the message itself if it is our own."""
    if error.errno is None or error.strerror is None:
        return str(error)
    # A rename that failed has two names; the second is the one that was asked for.
    name = error.filename2 if error.filename2 is not None else error.filename
    place = "" if name is None else f"{name}: "
    if error.errno not in _REMEDIES:
        return f"{place}{error.strerror}" if place else str(error)
    return f"{place}{_REMEDIES[error.errno]} ({error.strerror})"
