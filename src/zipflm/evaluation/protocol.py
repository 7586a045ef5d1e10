"""The result of an evaluation: one nll per token in the order of the text, and how it was made.

Perplexity, sub-word to word merging and frequency bins are reductions of it. NumPy only; knows
neither models nor files.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks, Unit
from zipflm.units import bits, perplexity


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """What a perplexity must be quoted with. It is per word whatever `unit` the model has."""

    unit: Unit
    """What one id of the model stands for."""
    blocks: Blocks
    """How the text was cut, and how much of each block was context."""
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
    dtype: str
    """Of activations and matrix products; log-probabilities are float32."""
    memory: tuple[str, ...] = ()
    """Memories that were mixed with the model, with their settings."""

    def by_name(self) -> dict[str, str | int]:
        """All of it in one flat table, for people and files."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        del own["blocks"], own["memory"]
        blocks = {f.name: getattr(self.blocks, f.name) for f in fields(self.blocks)}
        memory = {"memory": " + ".join(self.memory)} if self.memory else {}
        return {"unit": own.pop("unit")} | blocks | own | memory


@dataclass(frozen=True)
class TokenScores:
    """One entry per scored token, in the order of the text."""

    targets: NDArray[Any]
    """Ids of the tokens, in the integer type they are stored in."""
    nll: NDArray[np.float32]
    """-log p(token | what came before), in nats."""
    ends_word: NDArray[np.bool_]
    """False for a piece of a word that the next piece continues."""
    protocol: ScoringProtocol

    @property
    def nll_sum(self) -> float:
        return float(self.nll.sum(dtype=np.float64))

    @property
    def nats_per_word(self) -> float:
        return self.nll_sum / self.protocol.words

    @property
    def perplexity(self) -> float:
        """Per word."""
        return perplexity(self.nats_per_word)

    def with_memory(self, names: tuple[str, ...]) -> TokenScores:
        return replace(self, protocol=replace(self.protocol, memory=names))

    def words(self) -> NDArray[np.float64]:
        """nll per word: the pieces of a word added up, so that the total is the same.

        Pieces of 1 and 2 nats that make up a word, and a word of 4, give [3, 4].
        """
        starts = np.flatnonzero(np.append(True, self.ends_word[:-1]))
        return np.add.reduceat(self.nll.astype(np.float64), starts)

    def bits_per_byte(self, num_bytes: int) -> float:
        """Bits that the model needs per byte of a text of that length."""
        return bits(self.nll_sum) / num_bytes


def count_words(ends_word: NDArray[np.bool_]) -> int:
    """Words that tokens make up; pieces at the very end that nothing completes are one too."""
    return int(np.count_nonzero(ends_word)) + (not ends_word[-1])
