"""The spelling of every word as bytes, for the character CNN; derived from the vocabulary alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zipflm.config.layers import NUM_BYTES, NUM_MARKERS
from zipflm.data.vocabulary import SPECIALS, Vocabulary


def spellings(
    vocabulary: Vocabulary, max_bytes: int = 50, *, markers: bool = False
) -> NDArray[np.int16]:
    """UTF-8 bytes plus 1 of every word, [V, max_bytes], cut or filled up with 0; with `markers`
    between 257 and 258.

    The specials have no spelling: the model gives `</s>` and `<unk>` vectors of their own, and
    nothing spells padding. Fillers are spelled like words, as in fairseq.
    """
    room = max_bytes - NUM_MARKERS if markers else max_bytes
    encoded = [b""] * len(SPECIALS)
    encoded += [word.encode()[:room] for word in vocabulary.words[len(SPECIALS) :]]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    table = np.zeros((len(encoded), max_bytes), dtype=np.int16)
    # Row by row, left to right: the order in which the joined bytes come.
    table[np.arange(max_bytes) < lengths[:, None]] = (
        np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int16) + 1
    )
    if markers:
        words = np.arange(len(SPECIALS), len(table))
        table[words, 1:] = table[words, :-1]
        table[words, 0] = NUM_BYTES
        table[words, lengths[words] + 1] = NUM_BYTES + 1
    return table
