"""Configuration of how lines are split into words, and token streams into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import Checked, Positive

Rule = Literal["whitespace", "words", "wikitext"]
BreakMode = Literal["none", "complete", "sentence", "stream"]
Unit = Literal["word", "bpe"]
"""Whether ids are words or BPE pieces."""


@dataclass(frozen=True, kw_only=True)
class Blocks(Checked):
    """Blocks of up to `block` tokens. The first `context` of them are not scored."""

    break_mode: BreakMode
    """`none`: cut after exactly `block` tokens. `complete`: fill each block with whole sentences.
    `sentence`: one sentence each, batched with others of similar length. `stream`: like `none`, but
    each row of a batch continues the same row of the previous batch, and decoders with a constant
    state keep it from batch to batch."""
    block: Positive
    """Maximum number of tokens per block, context included (longer sentences are not cut)."""
    context: int = 0
    """Number of leading tokens that are context only, because an earlier block scored them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"must be below block={self.block}; give 0 to {self.block - 1}"
        self.require("context", 0 <= self.context < self.block, remedy)
        self.require(
            "context",
            self.break_mode != "stream" or self.context == 0,
            "break_mode=stream keeps the state from block to block; use context=0",
        )

    @property
    def has_one_length(self) -> bool:
        """True if all blocks except the last have the same length."""
        return self.break_mode in ("none", "stream")


@dataclass(frozen=True)
class Splitting(Checked):
    """The rule for splitting a line into words (implemented in `data.splitting`)."""

    rule: Rule = "whitespace"
    """`whitespace`: split at white space. `words`: also split off punctuation. `wikitext`: convert
    prose to WikiText's format (`@-@`, `@,@`, `'s`)."""
    lowercase: bool = False
    """Lowercase words after splitting."""

    @property
    def is_plain(self) -> bool:
        """True if lines are only split at white space."""
        return self == PLAIN

    def __str__(self) -> str:
        """The options of `zipflm prepare`."""
        return f"--words {self.rule}" + (" --lowercase" if self.lowercase else "")


PLAIN = Splitting()
"""The default: split at white space."""
