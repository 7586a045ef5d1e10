"""How text is cut: a line into words (`Splitting`), a stream of tokens into `Blocks`.

Training's batches, validation, `zipflm evaluate` and the protocol of a score share one type of
blocks; data folders and checkpoints carry the splitting along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import Checked, Positive, require

Rule = Literal["whitespace", "words", "wikitext"]
BreakMode = Literal["none", "complete", "sentence", "stream"]
Unit = Literal["word", "bpe"]
"""What one id stands for: a word, or a byte-pair piece of one."""


@dataclass(frozen=True, kw_only=True)
class Blocks(Checked):
    """Blocks of at most `block` tokens, of which the first `context` are not scored."""

    break_mode: BreakMode
    """`none`: cut after exactly `block` tokens. `complete`: as many whole sentences as fit.
    `sentence`: one sentence each, batched with others of similar length. `stream`: as `none`, but
    the text is first cut into one stretch for each row of a batch, so that every row of a batch
    continues that of the one before; decoders with a state of constant size carry it on."""
    block: Positive
    """Tokens that the model sees at once, context included (a longer sentence is not cut)."""
    context: int = 0
    """Tokens in front of what is scored, which an earlier block scored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.context < self.block,
            "context",
            self.context,
            f"must leave room for scored tokens in block={self.block}; give 0 to {self.block - 1}",
        )
        require(
            self.break_mode != "stream" or self.context == 0,
            "context",
            self.context,
            "break_mode=stream carries the state from block to block; use context=0",
        )

    @property
    def has_one_length(self) -> bool:
        """Whether all blocks but the last are equally long."""
        return self.break_mode in ("none", "stream")


@dataclass(frozen=True)
class Splitting(Checked):
    """The rule by which a line of text becomes words, as `data.splitting` applies it."""

    rule: Rule = "whitespace"
    """`whitespace`: words are what white space separates. `words`: punctuation is split off too.
    `wikitext`: prose is brought into the form that WikiText has (`@-@`, `@,@`, `'s`)."""
    lowercase: bool = False
    """Words are lowercased after they have been split."""

    @property
    def is_plain(self) -> bool:
        """Whether words are just what white space separates: then they are all of the text but
        for the kind and number of its spaces."""
        return self == PLAIN

    def __str__(self) -> str:
        """As options of `zipflm prepare`."""
        return f"--words {self.rule}" + (" --lowercase" if self.lowercase else "")


PLAIN = Splitting()
"""White space and nothing else: what is meant where nothing is said."""
