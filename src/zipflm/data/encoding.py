"""Convert words to ids, for scanned texts and single lines, and to bytes for the character CNN."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipflm.config import PLAIN, Splitting
from zipflm.config.layers import NUM_BYTES, NUM_MARKERS
from zipflm.data.scan import concatenated
from zipflm.data.splitting import Splitter, cache_short
from zipflm.data.vocabulary import END, PAD, SPECIALS, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from zipflm.data.bpe import Codes


class Encoding:
    """Ids of numbered words, with one vocabulary lookup per distinct word.

    Word n has `lengths[n]` ids in `flat`, starting at `starts[n]`. Word 0 is the end of a line.
    """

    def __init__(self, words: Collection[str], vocabulary: Vocabulary, codes: Codes | None) -> None:
        """`words[0]` is the end of a line. A word with an unknown piece becomes one `<unk>`."""
        if codes is None:
            self.lengths: NDArray[np.int64] = np.ones(len(words), dtype=np.int64)
            self.flat: NDArray[np.uint32] = vocabulary.ids(words).astype(np.uint32)
        else:
            _, *others = words
            ids = [[END], *(_piece_ids(pieces, vocabulary) for pieces in codes.split(others))]
            self.lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            self.flat = np.fromiter(chain.from_iterable(ids), np.uint32, self.lengths.sum())
        self.flat[0] = END
        # `<pad>` in a text must not look like padding.
        self.flat[self.flat == PAD] = UNKNOWN
        self.starts: NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths

    def apply(
        self, numbers: NDArray[Any], indices: NDArray[Any]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of the words `numbers[indices]`, and the positions after line ends.

        The two steps keep the lookup per token in the CPU cache. `numbers[0]` is the end of a
        line.
        """
        line_ends = np.flatnonzero(indices == 0)
        if len(self.flat) == len(self.lengths):
            return self.flat[numbers][indices], line_ends + 1
        starts, lengths = self.starts[numbers][indices], self.lengths[numbers][indices]
        ids, ends = concatenated(self.flat, starts, lengths)
        return ids, ends[line_ends]


def word_digests(words: Iterable[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash per word, for a hash of the text that does not depend on ids."""
    digests = [hashlib.blake2b(word.encode(), digest_size=8).digest() for word in words]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _piece_ids(pieces: Iterable[str], vocabulary: Vocabulary) -> list[int]:
    ids = [vocabulary.id(piece) for piece in pieces]
    return [UNKNOWN] if UNKNOWN in ids else ids


class EncodedWord(NamedTuple):
    """A word of a text with its ids."""

    word: str
    """As the vocabulary would spell it (for example lowercased), even if it is unknown."""
    span: tuple[int, int]
    """Position in the text: `text[start:end]`."""
    ids: tuple[int, ...]
    """One id, or one per BPE piece. A word with an unknown piece is a single `<unk>`, or the ids
    from `unseen_ids` of the `TextEncoder`."""


class TextEncoder:
    """Splits and encodes lines as `zipflm prepare` does, with a cache of words."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        codes: Codes | None = None,
        splitting: Splitting = PLAIN,
        unseen_ids: Callable[[Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        """`unseen_ids` assigns ids to words outside the vocabulary (default: `<unk>`)."""
        self.vocabulary: Vocabulary = vocabulary
        self.codes: Codes | None = codes
        self.splitter: Splitter = Splitter(splitting)
        self._unseen_ids = unseen_ids
        self._cached_ids = cache_short(self._ids)

    def line(self, text: str) -> list[EncodedWord]:
        """Return the words of a line, without the final `</s>`."""
        words = self.splitter.words(text)
        ids = self.ids(word.word for word in words)
        return [
            EncodedWord(word, (start, end), word_ids)
            for (word, start, end), word_ids in zip(words, ids, strict=True)
        ]

    def ids(self, words: Iterable[str]) -> list[tuple[int, ...]]:
        """Return the ids of each word."""
        return [self._cached_ids(word) for word in words]

    def _ids(self, word: str) -> tuple[int, ...]:
        pieces = [word] if self.codes is None else self.codes.split([word])[0]
        ids = _piece_ids(pieces, self.vocabulary)
        if ids == [UNKNOWN] and self._unseen_ids is not None and word not in SPECIALS:
            return tuple(self._unseen_ids([word]))
        return tuple(UNKNOWN if id == PAD else id for id in ids)


def spellings(
    vocabulary: Vocabulary, max_bytes: int = 50, *, markers: bool = False
) -> NDArray[np.int16]:
    """Return the bytes of every word as in `spelled`, [V, max_bytes]. Special tokens are all 0."""
    table = spelled(vocabulary.words, max_bytes, markers=markers)
    table[: len(SPECIALS)] = 0
    return table


def spelled(words: Sequence[str], max_bytes: int, *, markers: bool) -> NDArray[np.int16]:
    """Return the UTF-8 bytes of each word plus 1, truncated or padded with 0, [N, max_bytes].

    With `markers`, 257 precedes and 258 follows each word.
    """
    room = max_bytes - NUM_MARKERS if markers else max_bytes
    encoded = [word.encode()[:room] for word in words]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    table = np.zeros((len(encoded), max_bytes), dtype=np.int16)
    table[np.arange(max_bytes) < lengths[:, None]] = (
        np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int16) + 1
    )
    if markers:
        table[:, 1:] = table[:, :-1].copy()
        table[:, 0] = NUM_BYTES
        table[np.arange(len(table)), lengths + 1] = NUM_BYTES + 1
    return table
