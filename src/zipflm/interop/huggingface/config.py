"""A run's config as one that `transformers` reads and writes.

The whole of it travels in the field `zipflm`, strict as everywhere in this package. What other
libraries look for (`vocab_size`, `hidden_size` and so on) follows from it, and is written beside it
for them to find; a file in which the two disagree is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PretrainedConfig

from zipflm.config import Config
from zipflm.data.vocabulary import END, PAD
from zipflm.interop.huggingface.text_facts import parsed
from zipflm.presets import preset
from zipflm.quoting import quoted
from zipflm.records import from_dict, to_dict


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
        """`zipflm` is a `zipflm.Config` as JSON has it; without it, the paper's WikiText-103 model.

        `text` is `TextFacts`, with which its text became ids, and `updates` says how long the
        weights were trained: for whoever makes a run of them again.
        With `return_logits` a call with labels returns logits too, which are large.
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
                    f"{name}={quoted(kwargs[name])}: the field zipflm says {quoted(value)}, from "
                    "which this follows; change it there, or leave it out here"
                )
            setattr(self, name, kwargs.pop(name))
        # Tied weights are one tensor here, not two that somebody has to tie.
        kwargs["tie_word_embeddings"] = False
        super().__init__(**kwargs)

    @classmethod
    def of(cls, config: Config, **options: Any) -> ZipfConfig:
        """The config of such a model."""
        return cls(zipflm=to_dict(config), **options)

    @property
    def native(self) -> Config:
        """The config as the rest of this package knows it."""
        return from_dict(Config, self.zipflm, "zipflm.")


def _derived(native: Config) -> dict[str, int]:
    """What others look for, under the names by which they do."""
    return {
        "vocab_size": native.vocab_size,
        "hidden_size": native.decoder.dim,
        "num_hidden_layers": native.decoder.num_layers,
        "num_attention_heads": native.decoder.num_heads,
        # Any number of words will do; this is how many `zipflm evaluate` shows the model at once.
        "max_position_embeddings": native.batches.eval_block,
        # A text begins behind the end of another.
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
