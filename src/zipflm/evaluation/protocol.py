"""The result of an evaluation: one nll per token in the order of the text, with its protocol."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks, Unit
from zipflm.units import bits, perplexity


@dataclass(frozen=True, kw_only=True)
class ScoringProtocol:
    """The settings and counts to quote with a perplexity, which is always per word."""

    unit: Unit
    """The kind of token that the model predicts."""
    blocks: Blocks
    """Block length, context and break mode."""
    tokens: int
    """Number of tokens scored, each exactly once, including `</s>`."""
    words: int
    """Number of words in these tokens; `</s>` counts as a word."""
    unk: int
    """Number of `<unk>` tokens, scored like any other word."""
    eos: int
    """Number of `</s>` tokens."""
    positions: int
    """Number of tokens that went through the model, with context but without padding."""
    dtype: str
    """Type of activations and matrix products; log-probabilities are float32."""
    memory: tuple[str, ...] = ()
    """Memories mixed with the model, with their settings."""

    def by_name(self) -> dict[str, str | int]:
        """Return all fields in one flat dictionary."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        del values["blocks"], values["memory"]
        blocks = {f.name: getattr(self.blocks, f.name) for f in fields(self.blocks)}
        memory = {"memory": " + ".join(self.memory)} if self.memory else {}
        return {"unit": values.pop("unit")} | blocks | values | memory


@dataclass(frozen=True)
class TokenScores:
    """One item per scored token, in the order of the text."""

    targets: NDArray[Any]
    """Token ids, in their stored integer type."""
    nll: NDArray[np.float32]
    """-log p(token | previous tokens), in nats."""
    ends_word: NDArray[np.bool_]
    """False for a piece that the next one continues."""
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
        """Return the nll per word, summed over its pieces."""
        starts = np.flatnonzero(np.append(True, self.ends_word[:-1]))
        return np.add.reduceat(self.nll.astype(np.float64), starts)

    def bits_per_byte(self, num_bytes: int) -> float:
        return bits(self.nll_sum) / num_bytes


def count_words(ends_word: NDArray[np.bool_]) -> int:
    """Count the words in tokens. An unfinished word at the end counts as one."""
    return int(np.count_nonzero(ends_word)) + (not ends_word[-1])
