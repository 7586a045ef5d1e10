"""Mix the probabilities of a model with those of memories.

A memory stores tokens with the hidden vectors that predicted them, scaled to unit length. A lookup
mixes in the tokens that similar vectors predicted:

    p_memory(w) = sum of softmax(cosine / temperature) over the stored vectors that predicted w
    p(w)        = (1 - weight) p_model(w) + weight p_memory(w)

Several memories are mixed in sequence. The weight is 0 if a memory finds nothing, so probabilities
always sum to one. Temperature T for cosines corresponds to 2 T for squared distances.

Shapes: N predictions, M predictions chosen from them, K retrieved tokens, D model width,
V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from zipflm.config.checks import Bound
from zipflm.data.vocabulary import END, UNKNOWN

if TYPE_CHECKING:
    from zipflm.memory.cache import Cache, KeyWindow
    from zipflm.memory.neighbors import Neighbors


Ids = NDArray[np.int64]
RowIndex = slice | Tensor
"""Selects predictions of a batch."""
Temperature = Annotated[
    float, Bound(lambda t: 1e-4 <= t < math.inf, "must be finite and at least 0.0001")
]
NUM_SOURCES = 3
"""Number of neighbors per store that are listed as sources of a probability."""


def unit_vectors(hidden_ND: Tensor) -> Tensor:
    """Normalize decoder outputs to unit length for use as keys and queries, so that one temperature
    works for all models."""
    return F.normalize(hidden_ND.float(), dim=-1)


class Retrieved(NamedTuple):
    """Retrieved tokens with their probabilities."""

    probs_NK: Tensor
    """Undefined where `has_match_N` is False."""
    words_NK: Tensor
    """[N, K], or [K] if all predictions share the tokens."""
    has_match_N: Tensor
    """True for predictions with at least one retrieved token."""

    def prob_of(self, targets_N: Tensor) -> Tensor:
        """Return the probability of one word per prediction."""
        is_target_NK = self.words_NK == targets_N.unsqueeze(1)
        return (self.probs_NK * is_target_NK).sum(1).where(self.has_match_N, 0.0)

    def all_probs(self, num_words: int) -> Tensor:
        """Return the probability of every word, [N, V]."""
        probs_NK = self.probs_NK.where(self.has_match_N.unsqueeze(1), 0.0)
        probs_NV = probs_NK.new_zeros(len(probs_NK), num_words)
        return probs_NV.scatter_add_(1, self.words_NK.expand_as(probs_NK), probs_NK)


@dataclass(frozen=True)
class Matches:
    """Cosines of the retrieved tokens; -inf for unused positions."""

    cosines_NK: Tensor
    words_NK: Tensor
    has_match_N: Tensor
    rows_NK: Tensor | None = None
    """Row numbers in the store; None for a cache."""

    def chunks(self) -> Iterator[slice]:
        yield slice(0, len(self.has_match_N))

    def retrieve(self, rows: RowIndex, temperature: float) -> Retrieved:
        probs_NK = (self.cosines_NK[rows] / temperature).softmax(1)
        return Retrieved(probs_NK, self.words_NK[rows], self.has_match_N[rows])


def mix(log_probs: Tensor, memory_probs: Tensor, weight: Tensor) -> Tensor:
    """Return log((1 - weight) exp(log_probs) + weight memory_probs)."""
    return torch.logaddexp(torch.log1p(-weight) + log_probs, (weight * memory_probs).log())


class Mixture:
    """The lookups in all memories for a batch of predictions."""

    def __init__(
        self, memories: Sequence[Cache | Neighbors], lookups: Sequence[KeyWindow | Matches]
    ) -> None:
        self.lookups: Sequence[KeyWindow | Matches] = lookups
        self._pairs = [(m.settings, lookup) for m, lookup in zip(memories, lookups, strict=True)]

    def nll(self, nll_N: Tensor, targets_N: Tensor) -> Tensor:
        """Return the nll of the targets under the mixture, given that of the model."""
        for settings, lookup in self._pairs:
            recalled_N = target_probs(lookup, targets_N, settings.temperature)
            nll_N = -mix(-nll_N.float(), recalled_N, settings.weight * lookup.has_match_N.float())
        return nll_N

    def log_probs(self, log_probs_NV: Tensor, rows: RowIndex = slice(None)) -> Tensor:
        """Return the log-probabilities of all words under the mixture, for these predictions."""
        for settings, lookup in self._pairs:
            retrieved = lookup.retrieve(rows, settings.temperature)
            weight_N1 = settings.weight * retrieved.has_match_N.float().unsqueeze(1)
            recalled_NV = retrieved.all_probs(log_probs_NV.shape[1])
            log_probs_NV = mix(log_probs_NV.float(), recalled_NV, weight_N1)
        return log_probs_NV

    def sources(
        self, nll_M: Tensor, targets_M: Tensor, rows_M: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Split probabilities into the contributions of the model and of each memory.

        Returns them as [M, 1 + memories], and the rows of the nearest neighbors in each store.
        """
        parts, nearest = [(-nll_M.float()).exp()], []
        for settings, lookup in self._pairs:
            retrieved = lookup.retrieve(rows_M, settings.temperature)
            weight_M = settings.weight * retrieved.has_match_N.float()
            parts = [part * (1 - weight_M) for part in parts]
            parts.append(weight_M * retrieved.prob_of(targets_M))
            if lookup.rows_NK is not None:
                nearest.append(lookup.rows_NK[rows_M, :NUM_SOURCES])
        return torch.stack(parts, 1), nearest

    def for_rows(self, rows_M: Tensor) -> Callable[[Tensor, slice], Tensor]:
        """Return a function that mixes the log-probabilities of a slice of these predictions."""
        return lambda log_probs_NV, part: self.log_probs(log_probs_NV, rows_M[part])


def target_probs(lookup: KeyWindow | Matches, targets_N: Tensor, temperature: float) -> Tensor:
    """Return the probability of one word per prediction, computed in chunks."""
    probs = [
        lookup.retrieve(rows, temperature).prob_of(targets_N[rows]) for rows in lookup.chunks()
    ]
    return torch.cat(probs) if probs else targets_N.float()


class MemoryStream:
    """Memory lookups for a stream of tokens, which can contain independent documents."""

    def __init__(self, memories: Sequence[Cache | Neighbors]) -> None:
        self.memories = memories
        self._streams = [memory.stream() for memory in memories]
        self._is_start: list[NDArray[np.bool_]] = []
        self._last_lines = np.zeros(0, dtype=np.int64)
        """The last complete line and the current one, to find the start of the next document."""

    def set_tokens(
        self, ids: NDArray[Any], starts: Ids | None = None, seen: int = 0
    ) -> MemoryStream:
        """Set the tokens for the next lookups; the first `seen` were part of the previous call.

        Documents start at the indices `starts`, in addition to those that the reset rule of a cache
        finds. Otherwise the tokens continue the previous text.
        """
        before = len(self._last_lines)
        joined = np.concatenate([self._last_lines, np.asarray(ids)[seen:]])
        padding = np.zeros(seen, dtype=np.bool_)
        self._is_start = [
            np.concatenate([padding, np.append(False, memory.document_ends(joined))[before:-1]])
            for memory in self.memories
        ]
        if starts is not None:
            for is_start in self._is_start:
                is_start[starts] = True
        ends = np.flatnonzero(joined == END)
        self._last_lines = joined[ends[-2] + 1 if len(ends) > 1 else 0 :]
        return self

    def lookup(self, hidden_ND: Tensor, words_N: Tensor, positions: Ids) -> Mixture:
        """Look up these predictions, then store the predicted tokens in caches.

        The tokens continue those of the previous call. `positions` are their indices in the tokens
        passed to `set_tokens`.
        """
        lookups = [
            stream.lookup(hidden_ND, words_N, is_start[positions])
            for stream, is_start in zip(self._streams, self._is_start, strict=True)
        ]
        return Mixture(self.memories, lookups)


class MemoryRows:
    """Memory lookups for several texts in parallel, one row per text."""

    def __init__(self, memories: Sequence[Cache | Neighbors], num_words: int) -> None:
        """`join` stores ids >= `num_words`, which the model cannot predict, as `<unk>`."""
        self._memories, self._num_words = memories, num_words
        self._rows = [memory.rows() for memory in memories]
        self._lines: list[list[int]] = []
        """Ids of the current line of each row."""

    def join(self, texts: Sequence[tuple[Tensor, Ids]]) -> None:
        """Add rows for texts, given as vectors [T, D] and the tokens [T] that they predicted."""
        for memory, rows in zip(self._memories, self._rows, strict=True):
            firsts = [_after_last(memory.document_ends(ids)) for _, ids in texts]
            hidden = [vectors[first:] for (vectors, _), first in zip(texts, firsts, strict=True)]
            words = [ids[first:] for (_, ids), first in zip(texts, firsts, strict=True)]
            predicted = [np.where(ids < self._num_words, ids, UNKNOWN) for ids in words]
            rows.join(hidden, [torch.from_numpy(ids).to(hidden[0].device) for ids in predicted])
        self._lines += [ids[_after_last(ids == END) :].tolist() for _, ids in texts]

    def keep(self, kept: Sequence[int], kept_N: Tensor) -> None:
        """Keep only these rows; `kept_N` holds the same indices on the device."""
        self._lines = [self._lines[row] for row in kept]
        for rows in self._rows:
            rows.keep(kept, kept_N)

    def lookup(self, hidden_ND: Tensor) -> Mixture:
        return Mixture(self._memories, [rows.lookup(hidden_ND) for rows in self._rows])

    def add(self, hidden_ND: Tensor, words: Sequence[int], words_N: Tensor) -> None:
        """Store the next token of each row with the vector that predicted it, then clear the rows
        in which a new document starts. `words` and `words_N` are the same ids."""
        for rows in self._rows:
            rows.add(hidden_ND, words_N)
        for line, word in zip(self._lines, words, strict=True):
            line.append(word)
        ended = [row for row, word in enumerate(words) if word == END]
        for memory, rows in zip(self._memories, self._rows, strict=True):
            lines = [np.array(self._lines[row]) for row in ended]
            is_last = [memory.document_ends(line)[-1] for line in lines]
            rows.clear(list(compress(ended, is_last)))
        for row in ended:
            self._lines[row] = []


def _after_last(is_end: NDArray[np.bool_]) -> int:
    """Return the index after the last True."""
    ends = np.flatnonzero(is_end)
    return int(ends[-1]) + 1 if len(ends) else 0
