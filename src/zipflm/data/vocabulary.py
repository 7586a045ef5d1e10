"""Vocabularies: four special tokens, then words by descending count, then fillers.

The order, the padding to a multiple of 8 and the file format match fairseq, so its `dict.txt` gives
the same ids.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BEGIN, PAD, END, UNKNOWN = range(4)

FILLER = "madeupword"
"""Name prefix of filler ids, as in fairseq."""
CONTINUES = "@@"
"""Suffix of every piece of a word except the last, as in subword-nmt."""

# fairseq's marker for an entry that replaces an earlier one, e.g. a second `<unk>`.
_OVERWRITE = "#fairseq:overwrite"

_MAX_DIGITS = 18  # so that counts fit into 64 bits


class Vocabulary:
    """Maps words to ids. `words` and `counts` are indexed by id; special tokens have count 0."""

    def __init__(self, words: Iterable[str], counts: Iterable[int]) -> None:
        """Create a vocabulary from words in the order of their ids, special tokens first."""
        self.words: list[str] = list(words)
        self.counts: NDArray[np.int64] = np.array(list(counts), dtype=np.int64)
        if tuple(self.words[:4]) != SPECIALS or len(self.words) != len(self.counts):
            raise ValueError(
                f"a vocabulary starts with {' '.join(SPECIALS)} and has one count per word, not "
                f"{self.words[:4]} and {len(self.counts)} counts for {len(self.words)} words"
            )
        # A later entry replaces an earlier one, as in fairseq. `load` rejects unmarked duplicates.
        self.index: dict[str, int] = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        min_count: int = 3,
        max_size: int | None = None,
    ) -> Vocabulary:
        """Create a vocabulary sorted by descending count, then by code point.

        `max_size` includes the special tokens, but not the padding to a multiple of 8.
        """
        kept = sorted(
            (-count, word)
            for word, count in counts.items()
            if count >= min_count and word not in SPECIALS
        )
        if max_size is not None:
            del kept[max_size - len(SPECIALS) :]
        words = [*SPECIALS, *(word for _, word in kept)]
        kept_counts = [0] * len(SPECIALS) + [-count for count, _ in kept]
        num_fillers, taken = -len(words) % 8, set(words)
        names = (f"{FILLER}{number:04d}" for number in itertools.count())
        words += itertools.islice((name for name in names if name not in taken), num_fillers)
        return cls(words, kept_counts + [0] * num_fillers)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Vocabulary:
        """Read `word count` lines, without the special tokens.

        Raises ValueError, naming the line, for malformed, duplicate or unsorted entries.
        """
        words: list[str] = list(SPECIALS)
        counts = [0] * len(SPECIALS)
        lines_of: dict[str, int] = dict.fromkeys(SPECIALS, 0)
        try:
            lines = Path(path).read_bytes().decode().split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: not UTF-8 at byte {error.start}; expected a vocabulary file in UTF-8"
            ) from None
        if lines[-1] == "":
            lines.pop()
        for line_number, line in enumerate(lines, start=1):
            word, count, overwrites = _parse(path, line_number, line)
            if word in lines_of and not overwrites:
                where = f"on line {lines_of[word]}" if lines_of[word] else "a special token"
                raise ValueError(f"{path}: line {line_number}: {word!r} is already {where}")
            if line_number > 1 and count > counts[-1]:
                raise ValueError(
                    f"{path}: line {line_number}: count {count} of {word!r} is higher than the "
                    f"previous count {counts[-1]}; sort by descending count (but do not reorder "
                    "the vocabulary of a trained model)"
                )
            lines_of[word] = line_number
            words.append(word)
            counts.append(count)
        if len(words) == len(SPECIALS):
            raise ValueError(f"{path}: contains no words; expected a word and a count per line")
        return cls(words, counts)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file in the format that `load` and fairseq read."""
        seen: set[str] = set(SPECIALS)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for word, count in zip(self.words[4:], self.counts[4:].tolist(), strict=True):
                marker = f" {_OVERWRITE}" if word in seen else ""
                file.write(f"{word} {count}{marker}\n")
                seen.add(word)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def id(self, word: str) -> int:
        """Return the id of a word, or the id of `<unk>` if it is unknown."""
        return self.index.get(word, UNKNOWN)

    def ids(self, words: Collection[str]) -> NDArray[np.int64]:
        get = self.index.get
        return np.fromiter((get(word, UNKNOWN) for word in words), np.int64, len(words))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the words in order."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    @cached_property
    def ends_word(self) -> NDArray[np.bool_]:
        """Mask over the ids of a BPE vocabulary: True for the last piece of a word."""
        return np.array([not word.endswith(CONTINUES) for word in self.words], dtype=np.bool_)

    @property
    def is_never_generated(self) -> NDArray[np.bool_]:
        """Mask of ids that are never generated (`<unk>` only if it is forbidden): fillers, and
        special tokens except the line end."""
        names = zip(self.words, self.counts.tolist(), strict=True)
        mask = np.array([not count and word.startswith(FILLER) for word, count in names])
        mask[: len(SPECIALS)] = True
        mask[END] = False
        return mask

    @property
    def num_words(self) -> int:
        """Number of entries with a nonzero count, which excludes special tokens and fillers."""
        return int(np.count_nonzero(self.counts[len(SPECIALS) :]))


def _parse(path: str | PathLike[str], line_number: int, line: str) -> tuple[str, int, bool]:
    # Split at the last plain space, as fairseq does: words may contain other whitespace.
    word, _, field = line.rstrip().rpartition(" ")
    overwrites = field == _OVERWRITE
    if overwrites:
        word, _, field = word.rpartition(" ")
    if not word or not (field.isascii() and field.isdigit() and len(field) <= _MAX_DIGITS):
        raise ValueError(
            f"{path}: line {line_number}: {line[:60]!r} is not a word, a space and a whole number"
        )
    return word, int(field), overwrites
