"""Words to ids: those of a scanned text, those of lines as `zipflm prepare` encodes them, and the
spellings of words for the character CNN.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipflm.config import PLAIN, Splitting
from zipflm.config.layers import NUM_BYTES, NUM_MARKERS
from zipflm.data.scan import LINE_END, concatenated
from zipflm.data.splitting import Splitter
from zipflm.data.vocabulary import END, PAD, SPECIALS, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from zipflm.data.bpe import Codes

# Characters of different words whose ids are remembered, in bounded memory.
_REMEMBERED = 1 << 20


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

    def apply(
        self, numbers: NDArray[Any], places: NDArray[Any]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of the words `numbers[places]`, and the positions just after their line ends.

        `numbers` lists the words that a text has, the end of a line first; going through the list
        keeps the look-up per token in the processor's cache.
        """
        line_ends = np.flatnonzero(places == 0)
        if len(self.flat) == len(self.lengths):
            return self.flat[numbers][places], line_ends + 1
        starts, lengths = self.starts[numbers][places], self.lengths[numbers][places]
        ids, ends = concatenated(self.flat, starts, lengths)
        return ids, ends[line_ends]


def word_digests(words: Iterable[str]) -> NDArray[np.uint64]:
    """64 bits for every word, from which a text is hashed whatever ids its words became."""
    blake2b = hashlib.blake2b
    digests = [blake2b(word.encode(), digest_size=8).digest() for word in words]
    return np.frombuffer(b"".join(digests), dtype="<u8")


class EncodedWord(NamedTuple):
    """A word of a text with its ids."""

    word: str
    """As the vocabulary knows it, whether it is in there or not."""
    span: tuple[int, int]
    """Where in the text it stands: `text[start:end]`."""
    ids: tuple[int, ...]
    """One, or those of its pieces; one `<unk>` if it is unknown or a piece of it is."""


class TextEncoder:
    """Words and ids of lines, at the cost of a look-up for words that were seen before."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        codes: Codes | None = None,
        splitting: Splitting = PLAIN,
        unseen_ids: Callable[[Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        """`unseen_ids` gives ids to words outside the vocabulary; without it they are `<unk>`."""
        self.vocabulary: Vocabulary = vocabulary
        self.codes: Codes | None = codes
        self.splitter: Splitter = Splitter(splitting)
        self._unseen_ids = unseen_ids
        self._seen: dict[str, tuple[int, ...]] = {}
        self._num_characters = 0
        """Total length of the words seen."""

    def line(self, text: str) -> list[EncodedWord]:
        """The words of a line, without the `</s>` that ends it.

        A line end inside `text` is white space like any other.
        """
        pieces = self.splitter.words(text)
        ids = self.ids(piece.word for piece in pieces)
        return [
            EncodedWord(word, (start, end), of_word)
            for (word, start, end), of_word in zip(pieces, ids, strict=True)
        ]

    def ids(self, words: Iterable[str]) -> list[tuple[int, ...]]:
        """The ids of words that have been split already."""
        words = list(words)
        seen = self._seen
        if new := [word for word in dict.fromkeys(words) if word not in seen]:
            if self._num_characters + sum(map(len, new)) > _REMEMBERED:
                seen.clear()
                self._num_characters = 0
                new = list(dict.fromkeys(words))
            self._num_characters += sum(map(len, new))
            self._encode(new)
        return [seen[word] for word in words]

    def _encode(self, words: Sequence[str]) -> None:
        encoding = Encoding([LINE_END, *words], self.vocabulary, self.codes)
        flat = encoding.flat.tolist()
        places = zip(encoding.starts.tolist(), encoding.lengths.tolist(), strict=True)
        for word, (start, length) in zip(words, list(places)[1:], strict=True):
            self._seen[word] = tuple(flat[start : start + length])
        if self._unseen_ids is not None:
            unseen = [w for w in words if self._seen[w] == (UNKNOWN,) and w not in SPECIALS]
            ids = self._unseen_ids(unseen)
            self._seen |= {word: (id_,) for word, id_ in zip(unseen, ids, strict=True)}


def spellings(
    vocabulary: Vocabulary, max_bytes: int = 50, *, markers: bool = False
) -> NDArray[np.int16]:
    """The spelling of every word of a vocabulary, [V, max_bytes].

    The specials have none: the model gives `</s>` and `<unk>` vectors of their own, and nothing
    spells padding. Fillers are spelled like words, as in fairseq.
    """
    table = spelled(vocabulary.words, max_bytes, markers=markers)
    table[: len(SPECIALS)] = 0
    return table


def spelled(words: Sequence[str], max_bytes: int, *, markers: bool) -> NDArray[np.int16]:
    """UTF-8 bytes plus 1 of every word, cut or filled up with 0; with `markers` between 257 and
    258."""
    room = max_bytes - NUM_MARKERS if markers else max_bytes
    encoded = [word.encode()[:room] for word in words]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    table = np.zeros((len(encoded), max_bytes), dtype=np.int16)
    # Row by row, left to right: the order in which the joined bytes come.
    table[np.arange(max_bytes) < lengths[:, None]] = (
        np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int16) + 1
    )
    if markers:
        table[:, 1:] = table[:, :-1].copy()
        table[:, 0] = NUM_BYTES
        table[np.arange(len(table)), lengths + 1] = NUM_BYTES + 1
    return table
