"""What may reach a terminal: text without control characters, and no more of it than anybody reads.

Names of runs, labels and the reasons of errors come out of files that anybody may have written. An
escape sequence in one of them could move the cursor, change the window's title or hide what
follows.
"""

from __future__ import annotations

_LONGEST = 2_000
"""Characters of a message; the remedy stands at its end, so it is the middle that goes."""
_END = 400


def one_line(text: str) -> str:
    r"""The text with control characters, line ends among them, spelt out, and shortened.

    >>> one_line("a\x1b[2Jb\nc"), len(one_line("x" * 9_999))
    ('a\\x1b[2Jb\\nc', 2000)
    """
    if len(text) > _LONGEST:
        # What is spelt out only grows, so there is no need to look at more than this.
        text = text[:_LONGEST] + text[-_LONGEST:]
    spelt = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if len(spelt) <= _LONGEST:
        return spelt
    return f"{spelt[: _LONGEST - _END - 5]} ... {spelt[-_END:]}"


def lines(text: str) -> str:
    r"""The same for a text that we broke into lines ourselves.

    >>> lines("a\x07\nb")
    'a\\x07\nb'
    """
    return "\n".join(one_line(line) for line in text.split("\n"))
