"""Errors of the operating system in words, with a remedy."""

from __future__ import annotations

import errno

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
