"""Perplexity: the sum of the nll of all scored tokens, over the number of words they make up.

The unit is always the word: the pieces of a word add up to it, so BPE and word models compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from zipflm.data.batches import Batch


@dataclass(frozen=True)
class Scores:
    """Sums over scored tokens; those of several processes or files add up."""

    nll: float
    """In nats."""
    tokens: int
    words: int
    """Tokens that end a word; `</s>` is one."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        """exp(nats per word)."""
        per_word = self.nll / max(self.words, 1)
        return math.exp(per_word) if per_word < 700 else math.inf

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.nll + other.nll, self.tokens + other.tokens, self.words + other.words)


@torch.no_grad()
def evaluate(
    nll: Callable[[Tensor, Tensor, Tensor], Tensor],
    batches: Iterable[Batch],
    device: torch.device | str,
    ends_word: Tensor | None = None,
) -> Scores:
    """Score every batch with `nll(words, targets, scored)`; reads the device once, at the end.

    `ends_word` [V] tells which ids end a word; without it all do. The caller puts the model into
    evaluation mode.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    if ends_word is not None:
        ends_word = ends_word.to(device)
    for batch in batches:
        batch = batch.to(device, non_blocking=True)
        ends = batch.scored if ends_word is None else batch.scored & ends_word[batch.targets]
        totals[0] += nll(batch.words, batch.targets, batch.scored).sum(dtype=torch.float64)
        totals[1] += batch.scored.sum()
        totals[2] += ends.sum()
    total, tokens, words = totals.tolist()
    return Scores(total, int(tokens), int(words))
