"""How a stream of tokens is cut into what a model sees at once: one value for everybody.

Training's batches, validation, `zipflm evaluate` and the protocol of a score all say it with this
type, so that what was asked for, what was done and what is reported cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import LARGEST, require, require_choices

BreakMode = Literal["none", "complete", "sentence"]
Unit = Literal["word", "bpe"]
"""What one id stands for: a word, or a byte-pair piece of one."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of at most `block` tokens, of which the first `context` are not scored."""

    break_mode: BreakMode
    """`none`: cut after exactly `block` tokens. `complete`: as many whole sentences as fit.
    `sentence`: one sentence each, batched with others of similar length."""
    block: int
    """Tokens that the model sees at once, context included (a longer sentence is not cut)."""
    context: int = 0
    """Tokens in front of what is scored, which an earlier block scored."""

    def __post_init__(self) -> None:
        require_choices(self)
        require(1 <= self.block <= LARGEST, "block", self.block, f"give 1 to {LARGEST}")
        require(
            0 <= self.context < self.block,
            "context",
            self.context,
            f"must leave room for scored tokens in block={self.block}; give 0 to {self.block - 1}",
        )
