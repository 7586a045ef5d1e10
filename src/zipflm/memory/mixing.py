"""Mix the probabilities of a model with those of memories.

A memory compares the hidden vector that predicts a word, scaled to unit length, with the vectors
that predicted earlier words, and recalls those words:

    p_memory(w) = sum of softmax(cosine / temperature) over the remembered places where w followed
    p(w)        = (1 - weight) p(w) + weight p_memory(w)

Several memories are mixed one after the other. The weight is 0 if nothing is remembered, so
probabilities always sum to one. Temperature T for cosines equals 2 T for squared distances.

Shapes: N predictions, K remembered places, D model width, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from zipflm.config.checks import Bound
from zipflm.data.vocabulary import END, UNKNOWN

if TYPE_CHECKING:
    from zipflm.memory.cache import Band, Cache
    from zipflm.memory.neighbours import Neighbours


Ids = NDArray[np.int64]
Rows = slice | Tensor
Temperature = Annotated[
    float, Bound(lambda t: 1e-4 <= t < math.inf, "must be a finite number from 0.0001 on")
]
NEAREST = 3
"""Number of neighbours listed as sources of a probability."""


def unit_vectors(hidden_ND: Tensor) -> Tensor:
    """Keys and queries: decoder outputs of length one, so that one temperature suits all models."""
    return F.normalize(hidden_ND.float(), dim=-1)


class Recalled(NamedTuple):
    """Recalled words with their probabilities."""

    probs_NK: Tensor
    """Undefined in rows where nothing is remembered."""
    words_NK: Tensor
    """[N, K], or [K] if it is the same for all rows."""
    has_N: Tensor
    """True in rows where something is remembered."""

    def of(self, targets_N: Tensor) -> Tensor:
        """The probability of one word per row."""
        is_target_NK = self.words_NK == targets_N.unsqueeze(1)
        return (self.probs_NK * is_target_NK).sum(1).where(self.has_N, 0.0)

    def of_all(self, num_words: int) -> Tensor:
        """The probability of every word, [N, V]."""
        probs_NK = self.probs_NK.where(self.has_N.unsqueeze(1), 0.0)
        probs_NV = probs_NK.new_zeros(len(probs_NK), num_words)
        return probs_NV.scatter_add_(1, self.words_NK.expand_as(probs_NK), probs_NK)


@dataclass(frozen=True)
class Found:
    """Precomputed cosines; ignored places are -inf."""

    cosines_NK: Tensor
    words_NK: Tensor
    has_N: Tensor
    places_NK: Tensor | None = None

    def parts(self) -> Iterator[slice]:
        yield slice(0, len(self.has_N))

    def recalled(self, rows: Rows, temperature: float) -> Recalled:
        probs_NK = (self.cosines_NK[rows] / temperature).softmax(1)
        return Recalled(probs_NK, self.words_NK[rows], self.has_N[rows])


def mixed(logprobs: Tensor, recalled: Tensor, weight: Tensor) -> Tensor:
    """Log-probabilities of the mixture of a model and recalled probabilities."""
    return torch.logaddexp(torch.log1p(-weight) + logprobs, (weight * recalled).log())


class Mixture:
    """The lookups of all memories for a batch of predictions."""

    def __init__(
        self, memories: Sequence[Cache | Neighbours], lookups: Sequence[Band | Found]
    ) -> None:
        self.lookups: Sequence[Band | Found] = lookups
        self._pairs = [(m.settings, lookup) for m, lookup in zip(memories, lookups, strict=True)]

    def nll(self, nll_N: Tensor, targets_N: Tensor) -> Tensor:
        """Mix the nll of target words."""
        for settings, lookup in self._pairs:
            recalled_N = recalled_targets(lookup, targets_N, settings.temperature)
            nll_N = -mixed(-nll_N.float(), recalled_N, settings.weight * lookup.has_N.float())
        return nll_N

    def log_probs(self, log_probs_NV: Tensor, rows: Rows = slice(None)) -> Tensor:
        """Mix the log-probabilities of all words in some rows."""
        for settings, lookup in self._pairs:
            recalled = lookup.recalled(rows, settings.temperature)
            weight_N1 = settings.weight * recalled.has_N.float().unsqueeze(1)
            everywhere_NV = recalled.of_all(log_probs_NV.shape[1])
            log_probs_NV = mixed(log_probs_NV.float(), everywhere_NV, weight_N1)
        return log_probs_NV

    def sources(
        self, nll_M: Tensor, targets_M: Tensor, places_M: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The parts of the probabilities that come from the model and each memory,
        [M, 1 + memories], and the nearest places in each store."""
        parts, nearest = [(-nll_M.float()).exp()], []
        for settings, lookup in self._pairs:
            recalled = lookup.recalled(places_M, settings.temperature)
            weight_M = settings.weight * recalled.has_N.float()
            parts = [part * (1 - weight_M) for part in parts]
            parts.append(weight_M * recalled.of(targets_M))
            if lookup.places_NK is not None:
                nearest.append(lookup.places_NK[places_M, :NEAREST])
        return torch.stack(parts, 1), nearest

    def mix(self, places_M: Tensor) -> Callable[[Tensor, slice], Tensor]:
        """`log_probs` for slices of these rows."""
        return lambda log_probs_NV, rows: self.log_probs(log_probs_NV, places_M[rows])


def recalled_targets(lookup: Band | Found, targets_N: Tensor, temperature: float) -> Tensor:
    """The probability of one word per row, computed in chunks."""
    parts = [lookup.recalled(rows, temperature).of(targets_N[rows]) for rows in lookup.parts()]
    return torch.cat(parts) if parts else targets_N.float()


class Recall:
    """Memories of one stream of tokens, or of independent documents."""

    def __init__(self, memories: Sequence[Cache | Neighbours]) -> None:
        self.memories = memories
        self._streams = [memory.stream() for memory in memories]
        self._line = np.zeros(0, dtype=np.int64)
        self._begins: list[NDArray[np.bool_]] = []
        self._is_next_begin = np.zeros(len(memories), dtype=np.bool_)

    def open(self, ids: NDArray[Any], begins: Ids | None = None, seen: int = 0) -> Recall:
        """Set the tokens for the next lookups; the first `seen` are not new. Documents start at
        `begins`; by default the text continues."""
        ids = np.asarray(ids)
        line = len(self._line)
        joined = np.concatenate([self._line, ids[seen:]]) if line else ids[seen:]
        padding = np.zeros(seen, dtype=np.bool_)
        # One token more, to know whether the next one starts a document.
        known = [memory.begins(np.append(joined, 0))[line:] for memory in self.memories]
        for each, is_begin in zip(known, self._is_next_begin, strict=True):
            each[0] |= is_begin
        self._is_next_begin = np.array([each[-1] for each in known])
        self._begins = [np.append(padding, each[:-1]) for each in known]
        if begins is not None:
            for each in self._begins:
                each[begins] = True
        self._line = joined[_last_line_start(joined) :].astype(np.int64)
        return self

    def look(self, hidden_ND: Tensor, words_N: Tensor, places: Ids) -> Mixture:
        """Look up and then remember these words, which follow those of the last call."""
        lookups = [
            stream.look(hidden_ND, words_N, begins[places])
            for stream, begins in zip(self._streams, self._begins, strict=True)
        ]
        return Mixture(self.memories, lookups)


class RecallRows:
    """Memories of texts that are generated in parallel."""

    def __init__(self, memories: Sequence[Cache | Neighbours], num_words: int) -> None:
        """Ids from `num_words` on are remembered as `<unk>`."""
        self._memories, self._num_words = memories, num_words
        self._rows = [memory.rows() for memory in memories]
        self._lines: list[list[int]] = []
        """Ids of the current line of each row."""

    def join(self, texts: Sequence[tuple[Tensor, Ids]]) -> None:
        """Add rows that start with these vectors [T, D] and the words [T] that they predicted."""
        for memory, rows in zip(self._memories, self._rows, strict=True):
            firsts = [_last_begin(memory, ids) for _, ids in texts]
            hidden = [vectors[first:] for (vectors, _), first in zip(texts, firsts, strict=True)]
            words = [ids[first:] for (_, ids), first in zip(texts, firsts, strict=True)]
            predicted = [np.where(ids < self._num_words, ids, UNKNOWN) for ids in words]
            rows.join(hidden, [torch.from_numpy(ids).to(hidden[0].device) for ids in predicted])
        self._lines += [ids[_last_line_start(ids) :].tolist() for _, ids in texts]

    def keep(self, places: Sequence[int], places_N: Tensor) -> None:
        self._lines = [self._lines[place] for place in places]
        for rows in self._rows:
            rows.keep(places, places_N)

    def look(self, hidden_ND: Tensor) -> Mixture:
        return Mixture(self._memories, [rows.look(hidden_ND) for rows in self._rows])

    def add(self, hidden_ND: Tensor, words: Sequence[int], words_N: Tensor) -> None:
        """Remember the next word of each row and the vectors that predicted them."""
        for rows in self._rows:
            rows.add(hidden_ND, words_N)
        for line, word in zip(self._lines, words, strict=True):
            line.append(word)
        ended = [row for row, word in enumerate(words) if word == END]
        for memory, rows in zip(self._memories, self._rows, strict=True):
            rows.forget(
                [
                    row
                    for row in ended
                    if _last_begin(memory, np.array(self._lines[row])) == len(self._lines[row])
                ]
            )
        for row in ended:
            self._lines[row] = []


def _last_begin(memory: Cache | Neighbours, ids: Ids) -> int:
    """The start of the document that continues after these ids."""
    begins = np.flatnonzero(memory.begins(np.append(ids, 0)))
    return int(begins[-1]) if len(begins) else 0


def _last_line_start(ids: NDArray[Any]) -> int:
    ends = np.flatnonzero(ids == END)
    return int(ends[-1]) + 1 if len(ends) else 0
