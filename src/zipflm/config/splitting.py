"""How raw text is split into words: one value that data folders and checkpoints carry along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import require_choices

Rule = Literal["whitespace", "words", "wikitext"]


@dataclass(frozen=True)
class Splitting:
    """The rule by which a line of text becomes words, as `data.splitting` applies it."""

    rule: Rule = "whitespace"
    """`whitespace`: words are what white space separates. `words`: punctuation is split off too.
    `wikitext`: prose is brought into the form that WikiText has (`@-@`, `@,@`, `'s`)."""
    lowercase: bool = False
    """Words are lowercased after they have been split."""

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def is_plain(self) -> bool:
        """Whether words are just what white space separates: then they are all of the text but
        for the kind and number of its spaces."""
        return self == PLAIN

    def __str__(self) -> str:
        """As options of `zipflm prepare`."""
        return f"--split {self.rule}" + (" --lowercase" if self.lowercase else "")


PLAIN = Splitting()
"""White space and nothing else: what is meant where nothing is said."""
