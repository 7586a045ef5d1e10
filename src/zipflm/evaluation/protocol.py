"""The result of an evaluation: one nll per token in the order of the text, with its protocol."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks, Splitting, Unit
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
    """Number of `<unk>` tokens, which are scored like any other token."""
    eos: int
    """Number of `</s>` tokens."""
    positions: int
    """Number of tokens that went through the model, with context but without padding."""
    dtype: str
    """Type of activations and matrix products; log-probabilities are float32."""
    memory: tuple[str, ...] = ()
    """Memories mixed with the model, with their settings."""

    def by_name(self) -> dict[str, str | int]:
        """Return all fields in one flat dictionary; `memory` only if it is not empty."""
        values = asdict(self)
        blocks, memory = values.pop("blocks"), values.pop("memory")
        flat: dict[str, str | int] = {"unit": values.pop("unit")} | blocks | values
        if memory:
            flat["memory"] = " + ".join(memory)
        return flat


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

    def words(self) -> NDArray[np.float64]:
        """Return the nll of each word, summed over its pieces."""
        starts = np.flatnonzero(np.append(True, self.ends_word[:-1]))
        return np.add.reduceat(self.nll.astype(np.float64), starts)

    def bits_per_byte(self, num_bytes: int) -> float:
        return bits(self.nll_sum) / num_bytes


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Scores with the details that `zipflm evaluate` reports."""

    scores: TokenScores
    seconds: float
    run: str
    checkpoint: str
    """Name of the checkpoint folder."""
    source: str
    """The data folder or the text file."""
    split: str | None
    """None for a text file."""
    vocabulary: str
    """Hash of the vocabulary."""
    device: str
    num_bytes: int
    """Size of the normalized text: words joined by single spaces, one newline per line."""
    out_of_vocabulary: int
    """Number of words replaced by `<unk>`."""
    splitting: Splitting
    """Rule that split the text into words."""

    def __repr__(self) -> str:
        return f"<Evaluation of {self.run}: perplexity {self.perplexity:.4f} per word>"

    @property
    def perplexity(self) -> float:
        """Per word."""
        return self.scores.perplexity

    @property
    def bits_per_byte(self) -> float | None:
        """None if the text cannot be reconstructed from the words: `<unk>` loses the spelling,
        splitting off punctuation loses the spacing, and lowercasing loses capitals."""
        is_lossless = self.splitting.is_plain and not self.out_of_vocabulary
        return self.scores.bits_per_byte(self.num_bytes) if is_lossless else None

    def report(self) -> dict[str, Any]:
        """Return plain JSON values. `nll` and `perplexity` are per word: perplexity = exp(nll)."""
        scores, protocol = self.scores, self.scores.protocol
        return {
            "perplexity": scores.perplexity,
            "nll": scores.nats_per_word,
            "nll_sum": scores.nll_sum,
            "unit": "word",
            "tokens": protocol.tokens,
            "token_unit": protocol.unit,
            "words": protocol.words,
            "break": protocol.blocks.break_mode,
            "block": protocol.blocks.block,
            "context": protocol.blocks.context,
            "unk": protocol.unk,
            "eos": protocol.eos,
            "positions": protocol.positions,
            "dtype": protocol.dtype,
            "memory": list(protocol.memory),
            "seconds": self.seconds,
            "tokens_per_second": protocol.tokens / self.seconds,
            "bits_per_byte": self.bits_per_byte,
            "bytes": self.num_bytes,
            "out_of_vocabulary": self.out_of_vocabulary,
            "splitting": asdict(self.splitting),
            "run": self.run,
            "checkpoint": self.checkpoint,
            "source": self.source,
            "split": self.split,
            "vocabulary": self.vocabulary,
            "device": self.device,
        }

    def as_json(self) -> str:
        return json.dumps(self.report(), indent=1)

    def as_text(self) -> str:
        scores, protocol, blocks = self.scores, self.scores.protocol, self.scores.protocol.blocks
        return "\n".join(
            [
                f"perplexity  {scores.perplexity:.4f} per word ({scores.nats_per_word:.5f} nats)",
                f"checkpoint  {self.checkpoint} of {self.run}",
                f"scored      {protocol.tokens:,} tokens, {protocol.words:,} words, "
                f"including {protocol.eos:,} line ends and {protocol.unk:,} unknown words",
                f"protocol    block {blocks.block}, context {blocks.context}, break "
                f"{blocks.break_mode}, {protocol.dtype}",
                *(f"memory      {name}" for name in protocol.memory),
                f"bits/byte   {self._bits_per_byte_in_words()}",
                f"time        {self.seconds:.1f} s on {self.device}, "
                f"{protocol.tokens / self.seconds:,.0f} tokens/s",
            ]
        )

    def _bits_per_byte_in_words(self) -> str:
        value = self.bits_per_byte
        if value is not None:
            return f"{value:.4f}"
        if not self.splitting.is_plain:
            lost = "capitals" if self.splitting.rule == "whitespace" else "the original spacing"
            return f"not defined: {self.splitting} does not keep {lost}"
        return f"not defined: the spelling of {self.out_of_vocabulary:,} unknown words is lost"


def count_words(ends_word: NDArray[np.bool_]) -> int:
    """Count the words of a text from the flags of its tokens. An unfinished last word counts."""
    return int(np.count_nonzero(ends_word)) + (not ends_word[-1])
