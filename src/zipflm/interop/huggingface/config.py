"""The `transformers` config of a run, with hashes of the files that its tokenizer needs.

BPE codes and splitting rules are optional files. The hashes detect a missing file; without them
text would silently be tokenized the wrong way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PretrainedConfig

from zipflm.config import Config, Splitting
from zipflm.data.encoding import TextEncoder
from zipflm.data.folder import CODES_FILE, SPLITTING_FILE, VOCABULARY_FILE
from zipflm.data.vocabulary import END, PAD
from zipflm.messages import quoted
from zipflm.presets import preset
from zipflm.settings import from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """Hashes of everything that determines the ids of a text."""

    vocabulary: str
    """SHA-256 of words and counts in order."""
    codes: str | None
    """SHA-256 of the BPE codes, if any."""
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
        """Raise ValueError, naming a file, if `encoder` encodes text differently."""
        found = TextFacts.of(encoder)
        for name, ours, theirs in (
            (VOCABULARY_FILE, self.vocabulary, found.vocabulary),
            (CODES_FILE, self.codes, found.codes),
            (SPLITTING_FILE, self.splitting, found.splitting),
        ):
            if ours != theirs:
                raise ValueError(
                    f"{name}: missing, damaged or from another run; restore the file that was "
                    "saved with this config"
                )


def parsed(values: Mapping[str, Any] | None) -> TextFacts | None:
    """Parse the `text` field of a config, if it has one."""
    return None if values is None else from_dict(TextFacts, values, "text.")


class ZipfConfig(PretrainedConfig):
    """The config of a `ZipfForCausalLM`.

    >>> config = ZipfConfig.of(preset("tiny", "ADP-T"))
    >>> config.hidden_size, config.native.decoder.num_layers
    (64, 2)
    """

    model_type = "zipflm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        zipflm: Mapping[str, Any] | None = None,
        text: Mapping[str, Any] | None = None,
        updates: int = 0,
        return_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        """Create a config. `zipflm` is a `zipflm.Config` as a dict (default: wikitext-103/ADP-T).

        `text` is a `TextFacts` as a dict, and `updates` the number of training updates. With
        `return_logits`, calls with labels also return logits, which are large.
        """
        native = (
            preset("wikitext-103", "ADP-T")
            if zipflm is None
            else from_dict(Config, zipflm, "zipflm.")
        )
        self.zipflm: dict[str, Any] = to_dict(native)
        facts = parsed(text)
        self.text: dict[str, Any] | None = None if facts is None else to_dict(facts)
        self.updates: int = updates
        self.return_logits = return_logits
        for name, value in _derived(native).items():
            if kwargs.setdefault(name, value) != value:
                raise ValueError(
                    f"{name}={quoted(kwargs[name])}: the field zipflm implies {quoted(value)}; "
                    "change it there, or leave this out"
                )
            setattr(self, name, kwargs.pop(name))
        # Tied weights are already the same tensor.
        kwargs["tie_word_embeddings"] = False
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: Config, **options: Any) -> ZipfConfig:
        """Wrap a `zipflm.Config`."""
        return cls(zipflm=to_dict(config), **options)

    @property
    def native(self) -> Config:
        """The wrapped `zipflm.Config`."""
        return from_dict(Config, self.zipflm, "zipflm.")


def _derived(native: Config) -> dict[str, int]:
    """Return fields under the names that other libraries expect."""
    return {
        "vocab_size": native.vocab_size,
        "hidden_size": native.decoder.dim,
        "num_hidden_layers": native.decoder.depth,
        "num_attention_heads": getattr(native.decoder, "num_heads", 1),
        # Any length works; this is the window of `zipflm evaluate`.
        "max_position_embeddings": native.batches.eval_block,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
