"""What a file system refuses, in words and with a remedy."""

from __future__ import annotations

import errno
import os

_BY_NAME = {
    "EACCES": "you may not read or write it; change its permissions, or name another place",
    "EPERM": "the system does not allow it; name another place",
    "EROFS": "it is on a disk that can only be read; name a place that can be written to",
    "ENOSPC": "the disk is full; free some space, or name a place on another disk",
    "EDQUOT": "your share of the disk is used up; free some space, or name another disk",
    "EFBIG": "files may not grow so large here; name a place on another disk",
    "ENAMETOOLONG": "the name is too long for a file; give a shorter one",
    "ENOENT": "there is no such file or folder; check the name",
    "ENOTDIR": "a part of this path is a file, not a folder; check the name",
    "EISDIR": "is a folder, where a file is expected; name a file",
    "EEXIST": "is there already; choose another name, or remove it first",
    "ENOTEMPTY": "is a folder that is not empty; choose another name, or empty it first",
    "ELOOP": "links that lead to each other; mend them, or name the file itself",
    "EMFILE": "too many files are open; allow more (ulimit -n)",
    "ENFILE": "too many files are open on this machine; close some programs",
    "EIO": "the disk or the network could not read or write it; try again, or copy it first",
    "ESTALE": "it is on a network disk that has changed; try again",
    "ETXTBSY": "it is a program that is running; name another file",
    "EBUSY": "it is in use; close what uses it, or name another place",
    "ENXIO": "it is no file that can be read or written; name another one",
    "ENODEV": "it is no file that can be read or written; name another one",
    "EINVAL": "the system cannot make or open such a file; name another one",
    "ENOMEM": "there is not enough memory; close other programs",
}
_REMEDIES = {
    # Not every system has all of them.
    getattr(errno, name): remedy
    for name, remedy in _BY_NAME.items()
    if hasattr(errno, name)
}


def in_words(error: OSError) -> str:
    """What happened to which file, and what to do; as it is where the library has said so."""
    if error.errno is None or error.strerror is None:
        return str(error)
    if error.errno not in _REMEDIES:
        return str(error) if error.filename is None else f"{_name(error)}: {error.strerror}"
    place = f"{_name(error)}: " if error.filename is not None else ""
    return f"{place}{_REMEDIES[error.errno]} ({error.strerror})"


def _name(error: OSError) -> str:
    # Of a rename that failed both names are known, and the second is the one that was asked for.
    name = error.filename2 if error.filename2 is not None else error.filename
    return os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
