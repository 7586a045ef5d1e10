"""Words to ids: one id per word, or those of its pieces; and a hash of words whatever their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import END, PAD, UNKNOWN, Vocabulary

if TYPE_CHECKING:  # not for processes that only scan, which would load the library behind it
    from zipflm.data.bpe import Codes


class Encoding:
    """Ids of numbered words, so that a text is encoded at the cost of one look-up per word type.

    Word n has `lengths[n]` ids, from `starts[n]` on in `flat`. Number 0 is the end of a line.
    """

    def __init__(self, words: Collection[str], vocabulary: Vocabulary, codes: Codes | None) -> None:
        """`words[0]` stands for the end of a line, whatever it is.

        A word of which a piece is unknown becomes one `<unk>`, so that words keep their boundaries.
        """
        if codes is None:
            self.lengths: NDArray[np.int64] = np.ones(len(words), dtype=np.int64)
            self.flat: NDArray[np.uint32] = vocabulary.ids(words).astype(np.uint32)
        else:
            _, *split = words
            rows = [[END], *([vocabulary.id(p) for p in pieces] for pieces in codes.split(split))]
            rows = [[UNKNOWN] if UNKNOWN in row else row for row in rows]
            self.lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            self.flat = np.fromiter(chain.from_iterable(rows), np.uint32, self.lengths.sum())
        self.flat[0] = END
        # A text that spells `<pad>` must not look like padding.
        self.flat[self.flat == PAD] = UNKNOWN
        self.starts: NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Per word, whether it became `<unk>`, of which a word has one or none."""
        unknown: NDArray[np.bool_] = self.flat[self.starts] == UNKNOWN
        return unknown

    def apply(
        self, numbers: NDArray[Any], places: NDArray[Any]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of the words `numbers[places]`, and the positions just behind their line ends.

        `numbers` lists the words that a text has, the end of a line first; going through the list
        keeps the look-up per token in the processor's cache.
        """
        line_ends = np.flatnonzero(places == 0)
        if len(self.flat) == len(self.lengths):
            return self.flat[numbers][places], line_ends + 1
        starts, lengths = self.starts[numbers][places], self.lengths[numbers][places]
        ids, ends = concatenated(self.flat, starts, lengths)
        return ids, ends[line_ends]


def concatenated(
    flat: NDArray[np.uint32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Stretches of `flat` one behind the other, and the position behind each."""
    ends = np.cumsum(lengths)
    first = np.repeat(starts - (ends - lengths), lengths)
    return flat[first + np.arange(len(first))], ends


def word_digests(words: Iterable[str]) -> NDArray[np.uint64]:
    """64 bits for every word, from which a text is hashed whatever ids its words became."""
    blake2b = hashlib.blake2b
    digests = [blake2b(word.encode(), digest_size=8).digest() for word in words]
    return np.frombuffer(b"".join(digests), dtype="<u8")
