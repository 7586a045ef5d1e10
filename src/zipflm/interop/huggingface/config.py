"""The `transformers` config of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PretrainedConfig

from zipflm.config import Config
from zipflm.data.vocabulary import END, PAD
from zipflm.messages import quoted
from zipflm.presets import preset
from zipflm.settings import from_dict, to_dict


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
        updates: int = 0,
        return_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        """Create a config. `zipflm` is a `zipflm.Config` as a dict (default: wikitext-103/ADP-T).

        `updates` is the number of training updates so far. With `return_logits`, calls with labels
        also return logits, which take a lot of memory.
        """
        native = (
            preset("wikitext-103", "ADP-T")
            if zipflm is None
            else from_dict(Config, zipflm, "zipflm.")
        )
        self.zipflm: dict[str, Any] = to_dict(native)
        self.updates: int = updates
        self.return_logits = return_logits
        for name, value in _derived(native).items():
            if kwargs.setdefault(name, value) != value:
                raise ValueError(
                    f"{name}={quoted(kwargs[name])}: the field zipflm implies {quoted(value)}; "
                    f"leave {name} out (sizes are set in that field)"
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
    """Return the fields that other libraries expect, under their names."""
    return {
        "vocab_size": native.vocab_size,
        "hidden_size": native.decoder.dim,
        "num_hidden_layers": native.decoder.num_layers,
        "num_attention_heads": getattr(native.decoder, "num_heads", 1),
        # Any length works; this is the default block length of `zipflm evaluate`.
        "max_position_embeddings": native.batches.eval_block,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
