"""Models from configs and vocabularies: without weights yet, with their first ones, or with those
of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zipflm.config import CharacterInput, Config
from zipflm.data.characters import spellings
from zipflm.data.vocabulary import Vocabulary
from zipflm.model.initial import fills, first_value
from zipflm.model.language_model import LanguageModel

Part = tuple[slice, ...]
"""Which part of a tensor: one slice for each dimension, with start and stop; () is all of it."""

Values = Callable[[str, Part], Tensor]
"""Part of a parameter, by its name."""


def empty_model(config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """The model on the meta device: its parameters have shapes, but neither memory nor values.

    Whatever else it knows, such as how words are spelt, is there.
    """
    table = _spellings(config, vocabulary)
    with torch.device("meta"):
        return LanguageModel(config, table)


def first_values(model: LanguageModel, seed: int) -> Values:
    """A model's first weights, which follow from the seed and the name of each parameter alone."""
    how, params = fills(model), dict(model.named_parameters())

    def read(name: str, part: Part) -> Tensor:
        return first_value(seed, name, how[name], params[name])[part]

    return read


def untrained_model(config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """The model with its first weights, on the CPU."""
    model = empty_model(config, vocabulary)
    values = first_values(model, config.training.seed)
    weights = {name: values(name, ()) for name, _ in model.named_parameters()}
    model.load_state_dict(weights, assign=True)
    return model


def model_with(weights: dict[str, Tensor], config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """The model with these weights, in evaluation mode; nothing is initialised in between.

    ValueError if they are those of another model.
    """
    model = empty_model(config, vocabulary)
    types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    try:
        for name, tensor in weights.items():
            if tensor.dtype != types.get(name, tensor.dtype):
                raise RuntimeError(f"{name} is of {tensor.dtype}, not of {types[name]}")
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # torch lists names and shapes, on many lines
        reason = " ".join(str(error).split())
        raise ValueError(f"weights do not fit the config: {reason}") from None
    return model.eval()


def _spellings(config: Config, vocabulary: Vocabulary) -> Tensor | None:
    """What character input needs to know of the words."""
    if not isinstance(config.input, CharacterInput):
        return None
    chars = config.input
    return torch.from_numpy(spellings(vocabulary, chars.max_bytes, markers=chars.markers))
