"""How much memory `zipflm prepare` may take, and what it does with it.

The budget is that of the whole command: of this process with Python and its libraries in it, of the
processes that read text, and of what is counted. The constants were measured (peak resident memory,
texts in which no word occurs twice); `benchmarks/prepare.py` measures what comes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zipflm.data.text import CHUNK_BYTES

_MEGABYTE = 1 << 20
_PARENT = 64 * _MEGABYTE
_WORKER = 44 * _MEGABYTE
_PER_CHUNK_BYTE = 32
"""Reading a chunk takes so many times its size, as lists and tables of its words."""
_PER_WAITING_BYTE = 6
"""The same for a result that has not been taken in yet."""
_SMALLEST_CHUNK = CHUNK_BYTES >> 3
_PER_WORD = 360
"""Bytes that a word of a vocabulary takes until it is saved, its letters included."""
_PER_LEARNED_WORD = 1500
"""Bytes that a word takes while sub-words are learned from it."""

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(option: str, text: str, base: int = 1024) -> int:
    """A number with K, M, G or T behind it; ValueError, naming the option, if it is none.

    >>> parse_size("--memory", "2G"), parse_size("--shard-size", "1.5M", base=1000)
    (2147483648, 1500000)
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([KMGT]?)B?", text.strip().upper())
    size = int(float(found[1]) * base ** _UNITS[found[2]]) if found else 0
    if size < 1:
        raise ValueError(f"{option} {text}: write a number with K, M or G behind it, e.g. 2G")
    return size


@dataclass(frozen=True)
class MemoryPlan:
    """What a budget is spent on."""

    total: int
    processes: int
    chunk_bytes: int
    """Of text that a process reads at a time."""
    counting: int
    """Bytes for words that are being counted."""

    @classmethod
    def of(cls, total: int, processes: int) -> MemoryPlan:
        """As many processes as leave a third of the budget for counting.

        Raises ValueError if not even one does.
        """
        for number in range(processes, 0, -1):
            chunk = CHUNK_BYTES
            while chunk >= _SMALLEST_CHUNK:
                counting = total - _reading(number, chunk)
                if 3 * counting >= total:
                    return cls(total, number, chunk, counting)
                chunk //= 2
        least = -(-3 * _reading(1, _SMALLEST_CHUNK) // (2 * _MEGABYTE))
        raise ValueError(
            f"--memory {shown_size(total)}: reading and counting take at least {least}M"
        )

    @property
    def for_words(self) -> int:
        """Bytes for a vocabulary, when counting is over."""
        return self.total - _reading(1, self.chunk_bytes)

    def require_room(
        self, pairs: Iterable[tuple[str, int]], min_count: int, max_size: int | None
    ) -> Iterator[tuple[str, int]]:
        """The words that come by; ValueError when too many of them are to be kept."""
        most = self.for_words // _PER_WORD
        if max_size is not None and max_size <= most:
            yield from pairs
            return
        kept = 0
        for word, count in pairs:
            kept += count >= min_count
            if kept > most:
                raise ValueError(
                    f"--memory {shown_size(self.total)}: more than {most:,} different words occur "
                    f"{min_count} times or more, and a vocabulary of them does not fit; keep fewer "
                    f"(--max-size {most // 8 * 8}, or a larger --min-count), or raise --memory"
                )
            yield word, count

    def require_room_for_learning(self, num_words: int) -> None:
        """ValueError if sub-words cannot be learned from so many different words."""
        needed = _PARENT + _PER_LEARNED_WORD * num_words
        if needed > self.total:
            raise ValueError(
                f"--memory {shown_size(self.total)}: learning sub-words from {num_words:,} "
                f"different words takes about {shown_size(needed)}; learn them from a part of the "
                "text and give them with --bpe-codes, or raise --memory"
            )


def _reading(processes: int, chunk: int) -> int:
    """Bytes that are taken before a word is counted."""
    if processes == 1:
        return _PARENT + _PER_CHUNK_BYTE * chunk
    # Chunks are under way in each process and before it; see `scan`.
    waiting = (2 * processes + 1) * _PER_WAITING_BYTE * chunk
    return _PARENT + processes * (_WORKER + _PER_CHUNK_BYTE * chunk) + waiting


def shown_size(size: int) -> str:
    """As a person writes it.

    >>> shown_size(2 << 30), shown_size(300 << 20), shown_size(1 << 10)
    ('2G', '300M', '1K')
    """
    if size < _MEGABYTE:
        return f"{size >> 10}K" if size % 1024 == 0 else str(size)
    return f"{size >> 30}G" if size % (1 << 30) == 0 else f"{size / _MEGABYTE:.0f}M"
