"""A fairseq checkpoint and its dictionary as a model of this package, whole and checked.

Puts the parts together; writes nothing. `zipflm import-fairseq` makes a run folder of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from zipflm.config import BatchConfig, Config, ModelConfig
from zipflm.data.vocabulary import Vocabulary
from zipflm.interop.fairseq import model_config, model_weights, vocabulary_size
from zipflm.interop.fairseq_file import read_checkpoint

Source = str | PathLike[str]
Unit = Literal["word", "bpe"]

# Of the entries of a sub-word dictionary about half end in subword-nmt's mark of a word that goes
# on; among words the mark is all but unheard of.
_CONTINUES = "@@"
_SHARE_OF_CONTINUED_PIECES = 0.05


@dataclass(frozen=True)
class ImportedModel:
    """What a run folder is made of."""

    config: Config
    weights: dict[str, Tensor]
    """Under the names of `LanguageModel(config).state_dict()`, in float32."""
    vocabulary: Vocabulary
    updates: int
    """How many updates it was trained for."""


def read_model(
    checkpoint: Source, dictionary: Source, *, unit: Unit | None = None
) -> ImportedModel:
    """Read a checkpoint; `dictionary` is the `dict.txt` of the data it was trained on.

    `unit` is seen from the dictionary unless given. Raises ValueError or OSError, naming the file,
    for what is damaged, hostile, not understood or does not fit.
    """
    file = read_checkpoint(checkpoint)
    vocabulary = Vocabulary.load(dictionary)
    try:
        _require_size(dictionary, vocabulary, file.weights)
        model = model_config(file.options, len(vocabulary), file.weights)
        weights = _plain(model_weights(file.weights, model))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    config = _config(model, file.options, unit or _unit(vocabulary))
    return ImportedModel(config, weights, vocabulary, file.updates)


def _require_size(
    dictionary: Source, vocabulary: Vocabulary, weights: Mapping[str, Tensor]
) -> None:
    size = vocabulary_size(weights)
    if len(vocabulary) != size:
        raise ValueError(
            f"the model has {size} words, but {dictionary} makes {len(vocabulary)} with the four "
            "specials; give the dict.txt of the data that the model was trained on"
        )


def _plain(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own, in float32: models trained in half precision are stored so."""
    return {
        name: tensor.detach().to(torch.float32).contiguous().clone()
        for name, tensor in weights.items()
    }


def _unit(vocabulary: Vocabulary) -> Unit:
    continued = sum(word.endswith(_CONTINUES) for word in vocabulary.words)
    return "bpe" if continued > _SHARE_OF_CONTINUED_PIECES * len(vocabulary) else "word"


def _config(model: ModelConfig, options: Mapping[str, Any], unit: Unit) -> Config:
    """A run's config; how the model was trained is fairseq's and not translated."""
    block = options.get("tokens_per_sample")
    block = block if isinstance(block, int) and block >= 1 else BatchConfig().block
    tokens = max(block, BatchConfig().tokens)
    return Config(
        **{field.name: getattr(model, field.name) for field in fields(ModelConfig)},
        name=f"fairseq/{options.get('arch') or 'transformer_lm'}",
        batches=BatchConfig(unit=unit, block=block, tokens=tokens, eval_block=block),
    )
