"""Mixing the words that a memory recalls with those that a model predicts.

A memory compares the vector that predicts a word, scaled to unit length, with the vectors that
predicted words before, and recalls those words:

    p_memory(w) = sum of softmax(cosine / temperature) over the remembered places where w followed
    p(w)        = (1 - weight) p(w) + weight p_memory(w)

Several memories are mixed one after the other. Where nothing is remembered yet the weight is 0, so
probabilities always sum to one. On unit vectors a cosine is a squared distance up to a constant:
temperature T here is 2 T for distances.

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
"""Neighbours that are named as sources of a probability."""


def unit_vectors(hidden_ND: Tensor) -> Tensor:
    """The decoder's output as keys and queries: of length one, so that one temperature suits models
    whatever the size of their vectors."""
    return F.normalize(hidden_ND.float(), dim=-1)


class Recalled(NamedTuple):
    """The words of remembered places with their probabilities."""

    probs_NK: Tensor
    """Of rows in which nothing is remembered, anything."""
    words_NK: Tensor
    """[N, K], or [K] if it is the same for all rows."""
    has_N: Tensor
    """Whether anything is remembered."""

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
    """Places that were compared already; those that do not count are at -inf."""

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
    """Log-probabilities of the mixture, from those of the model and recalled probabilities."""
    return torch.logaddexp(torch.log1p(-weight) + logprobs, (weight * recalled).log())


class Mixture:
    """Everything that memories find for a batch of predictions."""

    def __init__(
        self, memories: Sequence[Cache | Neighbours], lookups: Sequence[Band | Found]
    ) -> None:
        self.lookups: Sequence[Band | Found] = lookups
        self._pairs = [(m.settings, lookup) for m, lookup in zip(memories, lookups, strict=True)]

    def nll(self, nll_N: Tensor, targets_N: Tensor) -> Tensor:
        """The model's nll of these words, mixed."""
        for settings, lookup in self._pairs:
            recalled_N = recalled_targets(lookup, targets_N, settings.temperature)
            nll_N = -mixed(-nll_N.float(), recalled_N, settings.weight * lookup.has_N.float())
        return nll_N

    def log_probs(self, log_probs_NV: Tensor, rows: Rows = slice(None)) -> Tensor:
        """The model's log-probabilities of all words, in some rows, mixed."""
        for settings, lookup in self._pairs:
            recalled = lookup.recalled(rows, settings.temperature)
            weight_N1 = settings.weight * recalled.has_N.float().unsqueeze(1)
            everywhere_NV = recalled.of_all(log_probs_NV.shape[1])
            log_probs_NV = mixed(log_probs_NV.float(), everywhere_NV, weight_N1)
        return log_probs_NV

    def sources(
        self, nll_M: Tensor, targets_M: Tensor, places_M: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The parts of each word's probability that come from the model and from every memory, in
        some rows: [M, 1 + memories]; and the nearest places of each memory that has a store."""
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
        """The same for these rows, slice by slice."""
        return lambda log_probs_NV, rows: self.log_probs(log_probs_NV, places_M[rows])


def recalled_targets(lookup: Band | Found, targets_N: Tensor, temperature: float) -> Tensor:
    """The probability of one word per row, part by part in bounded memory."""
    parts = [lookup.recalled(rows, temperature).of(targets_N[rows]) for rows in lookup.parts()]
    return torch.cat(parts) if parts else targets_N.float()


class Recall:
    """Memories over one stream of tokens, or over documents that know nothing of each other."""

    def __init__(self, memories: Sequence[Cache | Neighbours]) -> None:
        self.memories = memories
        self._streams = [memory.stream() for memory in memories]
        self._line = np.zeros(0, dtype=np.int64)
        self._begins: list[NDArray[np.bool_]] = []
        self._is_next_begin = np.zeros(len(memories), dtype=np.bool_)

    def open(self, ids: NDArray[Any], begins: Ids | None = None, seen: int = 0) -> Recall:
        """More tokens, whose places the next lookups name; the first `seen` were there before.
        Documents begin at `begins`; without them the text continues."""
        ids = np.asarray(ids)
        line = len(self._line)
        joined = np.concatenate([self._line, ids[seen:]]) if line else ids[seen:]
        padding = np.zeros(seen, dtype=np.bool_)
        # With one token more, of which it is known whether it begins a document.
        known = [memory.begins(np.append(joined, 0))[line:] for memory in self.memories]
        for each, is_begin in zip(known, self._is_next_begin, strict=True):
            each[0] |= is_begin
        self._is_next_begin = np.array([each[-1] for each in known])
        self._begins = [np.append(padding, each[:-1]) for each in known]
        if begins is not None:
            for each in self._begins:
                each[begins] = True
        self._line = joined[_last_line(joined) :].astype(np.int64)
        return self

    def look(self, hidden_ND: Tensor, words_N: Tensor, places: Ids) -> Mixture:
        """Before these words, which follow those of the last call; they are remembered."""
        lookups = [
            stream.look(hidden_ND, words_N, begins[places])
            for stream, begins in zip(self._streams, self._begins, strict=True)
        ]
        return Mixture(self.memories, lookups)


class RecallRows:
    """Memories over texts that grow side by side."""

    def __init__(self, memories: Sequence[Cache | Neighbours], num_words: int) -> None:
        """Ids from `num_words` on are remembered as `<unk>`, which the model predicts."""
        self._memories, self._num_words = memories, num_words
        self._rows = [memory.rows() for memory in memories]
        self._lines: list[list[int]] = []
        """Ids of the line that each row is in."""

    def join(self, texts: Sequence[tuple[Tensor, Ids]]) -> None:
        """More rows, which begin with words [T] that these vectors [T, D] predicted."""
        for memory, rows in zip(self._memories, self._rows, strict=True):
            firsts = [_last_begin(memory, ids) for _, ids in texts]
            hidden = [vectors[first:] for (vectors, _), first in zip(texts, firsts, strict=True)]
            words = [ids[first:] for (_, ids), first in zip(texts, firsts, strict=True)]
            predicted = [np.where(ids < self._num_words, ids, UNKNOWN) for ids in words]
            rows.join(hidden, [torch.from_numpy(ids).to(hidden[0].device) for ids in predicted])
        self._lines += [ids[_last_line(ids) :].tolist() for _, ids in texts]

    def keep(self, places: Sequence[int], places_N: Tensor) -> None:
        self._lines = [self._lines[place] for place in places]
        for rows in self._rows:
            rows.keep(places, places_N)

    def look(self, hidden_ND: Tensor) -> Mixture:
        """Before the next word of each row."""
        return Mixture(self._memories, [rows.look(hidden_ND) for rows in self._rows])

    def add(self, hidden_ND: Tensor, words: Sequence[int], words_N: Tensor) -> None:
        """The next word of each row, in two forms, and the vectors that predicted them."""
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
    """Where the document begins that continues after these ids."""
    begins = np.flatnonzero(memory.begins(np.append(ids, 0)))
    return int(begins[-1]) if len(begins) else 0


def _last_line(ids: NDArray[Any]) -> int:
    """Where the last line begins."""
    ends = np.flatnonzero(ids == END)
    return int(ends[-1]) + 1 if len(ends) else 0
