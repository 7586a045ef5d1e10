"""A fairseq checkpoint and its dictionary as a model of this package, whole and checked.

Puts the parts together; writes nothing. `zipflm import-fairseq` makes a run folder of the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from zipflm.config import AdaptiveOutput, BatchConfig, CharacterInput, Config, ModelConfig
from zipflm.data.vocabulary import CONTINUES, Vocabulary
from zipflm.interop.fairseq import model_config, split_shared
from zipflm.interop.fairseq_file import read_checkpoint
from zipflm.interop.fairseq_options import current
from zipflm.model.language_model import LanguageModel

Source = str | PathLike[str]
Unit = Literal["word", "bpe"]

# Of the entries of a sub-word dictionary about half bear a mark, subword-nmt's of a word that goes
# on or sentencepiece's of one that begins; among words the marks are all but unheard of.
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

    `unit` is seen from the dictionary unless given. Raises ValueError or OSError, naming the file,
    for what is damaged, hostile, not understood or does not fit.
    """
    file = read_checkpoint(checkpoint)
    vocabulary = Vocabulary.load(dictionary)
    try:
        # First: what kind of model it is at all.
        options = current(file.options, file.weights, file.model_options)
        _require_size(dictionary, vocabulary, file.weights)
        model = model_config(options, len(vocabulary), file.weights)
        weights = _plain(fitting_weights(file.weights, model))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    config = _config(model, options, unit or _unit(dictionary, vocabulary))
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
    bands = [len(t) for n, t in weights.items() if re.search(r"embed_tokens.embeddings.\d+.0", n)]
    if bands:
        return sum(bands)
    tails = [len(t) for n, t in weights.items() if re.search(r"adaptive_softmax.tail.\d+.2", n)]
    head = weights.get("decoder.adaptive_softmax.head.weight")
    if head is None:
        raise ValueError("no table of words among the weights; not a language model's")
    return len(head) - len(tails) + sum(tails)  # the head has a row for every tail, too


def fitting_weights(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A whole state dictionary under the names of `LanguageModel(config).state_dict()`.

    Raises ValueError that lists weights which are unknown, missing, left over or misshapen, and
    tied ones of which the copies differ.
    """
    _require_known_softmax(state, config)
    weights, shared = split_shared(state, config)
    _require_fit(weights, config)
    _require_equal_copies(shared, weights)
    return weights


def _require_known_softmax(state: Mapping[str, Tensor], config: ModelConfig) -> None:
    name = "decoder.adaptive_softmax.version"
    if isinstance(config.output, AdaptiveOutput) and name not in state:
        raise ValueError(
            f"weights do not fit the options: missing: {name}; without it the adaptive softmax is "
            "of an older kind, which fairseq does not read any more either"
        )


def _require_fit(weights: Mapping[str, Tensor], config: ModelConfig) -> None:
    """The names and shapes must be those of the model that the options describe."""
    _require_counts(weights, config)
    try:
        with torch.device("meta"):
            model = LanguageModel(config)
    except RuntimeError as error:  # sizes beyond what a tensor can have
        raise ValueError(f"options describe no model that can be built: {error}") from None
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
        lists = "; ".join(f"{what}: {', '.join(names)}" for what, names in wrong.items() if names)
        raise ValueError(f"weights do not fit the options: {lists}")


def _require_counts(weights: Mapping[str, Tensor], config: ModelConfig) -> None:
    """As many parts as the options say, which are not believed: a model is made of that many."""
    said = {"decoder_layers": ("decoder.layers.", config.decoder.num_layers)}
    if isinstance(config.input, CharacterInput):
        said["character_filters"] = ("input.convolutions.", len(config.input.filters))
        said["char_embedder_highway_layers"] = ("input.highway.", config.input.highway_layers)
    for option, (prefix, count) in said.items():
        names = (name.removeprefix(prefix) for name in weights if name.startswith(prefix))
        found = len({name.partition(".")[0] for name in names})
        if found != count:
            raise ValueError(f"{option}={count}: but there are weights for {found} layers")


def _require_equal_copies(shared: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """A file holds a tied weight under both of its names; this package keeps one."""
    for name, copy in shared.items():
        original = _original(name)
        if original not in weights or not torch.equal(copy, weights[original]):
            raise ValueError(
                f"{name} and {original} should be one weight, by the options, but differ; the "
                "file was changed or its options are not its own"
            )


def _original(name: str) -> str:
    """Which weight of the input layer a tied weight of the output layer is."""
    if name == "output.table":
        return "input.table"
    kind, band = name.split(".")[1:]
    if kind == "embeddings":
        return f"input.embeddings.{band}"
    return f"input.projections.{int(band) + 1}"  # of the tails alone, hence one further


def _plain(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own, in float32: models trained in half precision are stored so."""
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


def _config(model: ModelConfig, options: Mapping[str, Any], unit: Unit) -> Config:
    """A run's config; how the model was trained is fairseq's and not translated."""
    block = options.get("tokens_per_sample") or BatchConfig().block
    tokens = max(block, BatchConfig().tokens)
    return Config(
        **{field.name: getattr(model, field.name) for field in fields(ModelConfig)},
        name=f"fairseq/{options.get('arch') or 'transformer_lm'}",
        batches=BatchConfig(unit=unit, block=block, tokens=tokens, eval_block=block),
    )
