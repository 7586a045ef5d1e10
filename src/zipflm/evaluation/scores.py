"""The result of an evaluation: one nll per token in the order of the text, and how it was made.

Perplexity, sub-word to word merging and frequency bins are reductions of it. NumPy only; knows
neither models nor files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MAX_EXPONENT = math.log(1e300)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What a perplexity must be quoted with. It is per word whatever `unit` the model has."""

    unit: str
    """What one id of the model stands for: `word`, or `bpe` for sub-words."""
    break_mode: str
    """How the text was cut: `none`, `complete` or `sentence`."""
    block: int
    """Most tokens the model saw at once (a longer sentence alone is not cut)."""
    context: int
    """Of which so many were context, scored in an earlier block."""
    tokens: int
    """Tokens scored, each exactly once, `</s>` included."""
    words: int
    """Words they make up; `</s>` is one."""
    unk: int
    """How many of the tokens are `<unk>`, scored as a word like any other."""
    eos: int
    """How many of the tokens are `</s>`."""
    positions: int
    """Tokens that went through the model, context included, padding not."""
    precision: str
    """Of activations and matrix products; log-probabilities are float32."""


@dataclass(frozen=True)
class TokenScores:
    """One entry per scored token, in the order of the text."""

    targets: NDArray[np.int64]
    """Ids of the tokens."""
    nll: NDArray[np.float32]
    """-log p(token | what came before), in nats."""
    ends_word: NDArray[np.bool_]
    """False for a piece of a word that the next piece continues."""
    protocol: Protocol

    def __post_init__(self) -> None:
        if not len(self.targets) == len(self.nll) == len(self.ends_word) > 0:
            raise ValueError(
                f"{len(self.targets)} targets, {len(self.nll)} nll and {len(self.ends_word)} word "
                "ends: there must be equally many, at least one"
            )

    @property
    def tokens(self) -> int:
        return len(self.nll)

    @property
    def num_words(self) -> int:
        # Pieces at the very end that nothing completes still make up a word.
        return int(np.count_nonzero(self.ends_word)) + (not self.ends_word[-1])

    @property
    def nll_sum(self) -> float:
        return float(self.nll.sum(dtype=np.float64))

    @property
    def perplexity(self) -> float:
        """exp(nats per word); infinite where that is beyond all numbers."""
        per_word = self.nll_sum / self.num_words
        return math.exp(per_word) if per_word < _MAX_EXPONENT else math.inf

    def words(self) -> NDArray[np.float64]:
        """nll per word: the pieces of a word added up, so that the total is the same.

        Pieces of 1 and 2 nats that make up a word, and a word of 4, give [3, 4].
        """
        starts = np.flatnonzero(np.append(True, self.ends_word[:-1]))
        return np.add.reduceat(self.nll.astype(np.float64), starts)

    def bits_per_byte(self, num_bytes: int) -> float:
        """Bits that the model needs per byte of a text of that length."""
        return self.nll_sum / math.log(2) / num_bytes
