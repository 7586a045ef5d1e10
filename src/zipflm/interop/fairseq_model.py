"""A fairseq checkpoint and its dictionary as a model of this package, complete and checked.

Puts the parts together and writes nothing; `zipflm import-fairseq` makes a run folder of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from zipflm.config import AdaptiveOutput, BatchConfig, Config, ModelConfig
from zipflm.data.vocabulary import CONTINUES, Vocabulary
from zipflm.interop.fairseq import config_from_latest, weights_and_copies
from zipflm.interop.fairseq_file import read_checkpoint
from zipflm.interop.fairseq_options import latest_options, listed
from zipflm.model.language_model import LanguageModel

Source = str | PathLike[str]
Unit = Literal["word", "bpe"]

# About half of the entries of a sub-word dictionary bear a mark: subword-nmt's for a word that goes
# on, or sentencepiece's for one that begins. Among whole words such marks hardly ever occur.
_SHARE_OF_PIECES = 0.05


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

    The dictionary tells the `unit` if it is not given. Raises ValueError or OSError, naming the
    file, for what is damaged, hostile, not understood or does not fit.
    """
    file = read_checkpoint(checkpoint)
    vocabulary = Vocabulary.load(dictionary)
    try:
        # First, because another kind of model also has other weights.
        options = latest_options(file.options, file.weights, file.model_options)
        _require_size(dictionary, vocabulary, file.weights)
        model = config_from_latest(options, len(vocabulary))
        weights = _float32_copies(fitting_weights(file.weights, model))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    config = _run_config(model, options, unit or _unit(dictionary, vocabulary))
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


def vocabulary_size(weights: Mapping[str, Tensor]) -> int:
    """Number of words that a state dictionary has vectors for."""
    for name in ("embed_tokens.weight", "output_projection.weight", "embed_out"):
        if f"decoder.{name}" in weights:
            return len(weights[f"decoder.{name}"])
    bands = _lengths(r"embed_tokens\.embeddings\.[0-9]+\.0\.weight", weights)
    if bands:
        return sum(bands)
    tails = _lengths(r"adaptive_softmax\.tail\.[0-9]+\.2\.weight", weights)
    head = weights.get("decoder.adaptive_softmax.head.weight")
    if head is None:
        raise ValueError("no table of words among the weights; not a language model's")
    return len(head) - len(tails) + sum(tails)  # the head has a row for every tail, too


def _lengths(pattern: str, weights: Mapping[str, Tensor]) -> list[int]:
    return [len(t) for name, t in weights.items() if re.fullmatch(rf"decoder\.{pattern}", name)]


def fitting_weights(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A complete state dictionary under the names of `LanguageModel(config).state_dict()`.

    Raises ValueError listing weights that are unknown, missing, left over or misshapen, or a tied
    one whose copies differ.
    """
    _require_known_softmax(state, config)
    weights, copies = weights_and_copies(state, config)
    _require_fit(weights, config)
    _require_equal_copies(copies, weights)
    return weights


def _require_known_softmax(state: Mapping[str, Tensor], config: ModelConfig) -> None:
    name = "decoder.adaptive_softmax.version"
    if isinstance(config.output, AdaptiveOutput) and name not in state:
        raise ValueError(
            f"weights do not fit the options: missing: {name}; without it the adaptive softmax is "
            "of an older kind, which fairseq no longer reads either"
        )


def _require_fit(weights: Mapping[str, Tensor], config: ModelConfig) -> None:
    """The names and shapes must be those of the model that the options describe."""
    with torch.device("meta"):
        model = LanguageModel(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = {
        "missing": sorted(expected.keys() - shapes.keys()),
        "left over": sorted(shapes.keys() - expected.keys()),
        "of another shape": [
            f"{name} {shapes[name]}, not {shape}"
            for name, shape in expected.items()
            if shapes.get(name, shape) != shape
        ],
        "not of floating point": [n for n, t in weights.items() if not t.is_floating_point()],
    }
    if any(wrong.values()):
        lists = "; ".join(f"{what}: {listed(names)}" for what, names in wrong.items() if names)
        raise ValueError(f"weights do not fit the options: {lists}")


def _require_equal_copies(copies: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """A file holds a tied weight under both of its names; this package keeps one."""
    for name, copy in copies.items():
        original = _original(name)
        same = weights.get(original)
        if same is None or copy.dtype != same.dtype or not torch.equal(copy, same):
            raise ValueError(
                f"{name} and {original} should be one weight, by the options, but differ; the "
                "file was changed or its options are not its own"
            )


def _original(name: str) -> str:
    """The weight of the input layer that a tied weight of the output layer is."""
    if name == "output.table":
        return "input.table"
    kind, band = name.split(".")[1:]
    if kind == "embeddings":
        return f"input.embeddings.{band}"
    return f"input.projections.{int(band) + 1}"  # here bands are counted without the head


def _float32_copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own; models trained in half precision are stored in it."""
    return {
        name: tensor.detach().to(torch.float32).contiguous().clone()
        for name, tensor in weights.items()
    }


def _unit(dictionary: Source, vocabulary: Vocabulary) -> Unit:
    if 1 - vocabulary.ends_word.mean() > _SHARE_OF_PIECES:
        return "bpe"
    foreign = sum(word.startswith("\u2581") for word in vocabulary.words)
    if foreign > _SHARE_OF_PIECES * len(vocabulary):
        raise ValueError(
            f"{dictionary}: {foreign} of its {len(vocabulary)} entries begin with \u2581, as "
            f"sentencepiece's do; zipflm puts only subword-nmt's pieces ({CONTINUES}) together, "
            "and would take each of these for a word"
        )
    return "word"


def _run_config(model: ModelConfig, options: Mapping[str, Any], unit: Unit) -> Config:
    """A run's config; how fairseq trained the model is not translated."""
    block = options.get("tokens_per_sample") or BatchConfig().block
    tokens = max(block, BatchConfig().tokens)
    return Config(
        **{field.name: getattr(model, field.name) for field in fields(ModelConfig)},
        name=f"fairseq/{options.get('arch') or 'transformer_lm'}",
        batches=BatchConfig(unit=unit, block=block, tokens=tokens, eval_block=block),
    )
