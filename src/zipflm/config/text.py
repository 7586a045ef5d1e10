"""Configuration of how lines are split into words, and how tokens are cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import Checked, PositiveInt

Rule = Literal["whitespace", "words", "wikitext"]
BreakMode = Literal["none", "complete", "sentence", "stream"]
Unit = Literal["word", "bpe"]
"""Whether ids are words or BPE pieces."""


@dataclass(frozen=True, kw_only=True)
class Blocks(Checked):
    """Rule for cutting text into blocks of up to `block` tokens. In all blocks except the first, up
    to `context` tokens at the start are not scored. A sentence is a line of the text."""

    break_mode: BreakMode
    """`none`: cut after exactly `block` tokens. `complete`: fill each block with complete
    sentences. `sentence`: one sentence per block, batched with others of similar length. `stream`:
    like `none`, but each row of a batch (in training: of an update) continues the same row of the
    previous one, and decoders with a constant state keep their state."""
    block: PositiveInt
    """Maximum number of tokens per block, context included. `complete` and `sentence` do not cut
    longer sentences."""
    context: int = 0
    """Number of tokens at the start of a block that are only context: an earlier block scored
    them."""

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
        """True if all blocks except the last of a text or segment have the same length."""
        return self.break_mode in ("none", "stream")


@dataclass(frozen=True)
class Splitting(Checked):
    """The rule for splitting a line into words (implemented in `data.splitting`)."""

    rule: Rule = "whitespace"
    """`whitespace`: split at white space. `words`: also split off punctuation. `wikitext`: split
    prose as in WikiText (`@-@`, `@,@`, `'s`)."""
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
