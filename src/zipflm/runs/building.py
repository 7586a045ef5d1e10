"""Models from configs and vocabularies: with their first weights, or with those of a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from zipflm.config import CharacterInput, Config
from zipflm.data.characters import spellings
from zipflm.data.vocabulary import Vocabulary
from zipflm.model.language_model import LanguageModel


def untrained_model(config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """The model with its first weights, which follow from the config's seed."""
    # On the CPU and from the same seed everywhere, so that all processes start alike.
    torch.manual_seed(config.training.seed)
    return LanguageModel(config, _spellings(config, vocabulary))


def model_with(weights: dict[str, Tensor], config: Config, vocabulary: Vocabulary) -> LanguageModel:
    """The model with these weights, in evaluation mode; nothing is initialised in between."""
    table = _spellings(config, vocabulary)
    with torch.device("meta"):
        model = LanguageModel(config, table)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # its text lists names and shapes
        reason = " ".join(str(error).split())
        raise ValueError(f"weights do not fit the config: {reason}") from None
    return model.eval()


def _spellings(config: Config, vocabulary: Vocabulary) -> Tensor | None:
    """What character input needs to know of the words."""
    if not isinstance(config.input, CharacterInput):
        return None
    return torch.from_numpy(spellings(vocabulary, config.input.max_bytes))
