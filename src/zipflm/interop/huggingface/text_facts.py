"""With what a tokenizer reads text, in a few words: so that a file that is missing is missed.

Codes and a splitting are files that a run may or may not have, and without them text would be read
all the same, only wrongly. The configs of model and tokenizer therefore say what belongs to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zipflm.config import Splitting
from zipflm.data.folder import CODES_FILE, SPLITTING_FILE, VOCABULARY_FILE
from zipflm.data.lines import TextEncoder
from zipflm.records import from_dict


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """How raw text becomes ids; two that are equal read all texts alike."""

    vocabulary: str
    """SHA-256 of words and counts in order."""
    codes: str | None
    """SHA-256 of the byte-pair codes; None where words are not split."""
    splitting: Splitting

    @classmethod
    def of(cls, encoder: TextEncoder) -> TextFacts:
        vocabulary, codes = encoder.vocabulary, encoder.codes
        entries = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
        text = "\n".join(f"{word} {count}" for word, count in entries)
        return cls(
            vocabulary=hashlib.sha256(text.encode()).hexdigest(),
            codes=None if codes is None else codes.hash,
            splitting=encoder.splitter.splitting,
        )

    def require(self, encoder: TextEncoder) -> None:
        """ValueError, naming a file, if this reads text differently."""
        found = TextFacts.of(encoder)
        for name, ours, theirs in (
            (VOCABULARY_FILE, self.vocabulary, found.vocabulary),
            (CODES_FILE, self.codes, found.codes),
            (SPLITTING_FILE, self.splitting, found.splitting),
        ):
            if ours != theirs:
                raise ValueError(
                    f"{name}: missing, damaged or of another run; put the file back that was saved "
                    "with this config"
                )


def parsed(values: Mapping[str, Any] | None) -> TextFacts | None:
    """What a config says, if it says anything."""
    return None if values is None else from_dict(TextFacts, values, "text.")
