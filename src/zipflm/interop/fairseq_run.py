"""`zipflm import-fairseq`: a fairseq checkpoint and its dictionary, made into a run folder."""

from __future__ import annotations

import shutil
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from zipflm.config import BatchConfig, Config, ModelConfig
from zipflm.data.bpe import CONTINUES, Codes
from zipflm.data.folder import CODES_FILE, new_folder, refuse_existing
from zipflm.data.vocabulary import Vocabulary
from zipflm.interop.fairseq import model_config, model_weights, vocabulary_size
from zipflm.interop.fairseq_file import CheckpointFile, read_checkpoint
from zipflm.overrides import to_dict
from zipflm.training import checkpoint as checkpoints

Source = str | PathLike[str]

# Of the entries of a sub-word dictionary about half end in the mark of a word that goes on; among
# words the mark is all but unheard of.
_SHARE_OF_CONTINUED_PIECES = 0.05


def import_checkpoint(
    checkpoint: Source, dictionary: Source, out: Source, *, bpe_codes: Source | None = None
) -> Config:
    """Write a run folder with the model of a checkpoint; the folder appears whole or not at all.

    `dictionary` is the `dict.txt` that the model was trained with; `bpe_codes` are kept for
    scoring raw text. Raises ValueError or OSError, naming the file, for what cannot be imported.
    """
    refuse_existing(out)
    file = read_checkpoint(checkpoint)
    vocabulary = Vocabulary.load(dictionary)
    if bpe_codes is not None:
        Codes.load(bpe_codes)  # that they can be read should not turn out later
    try:
        _require_size(dictionary, vocabulary, file)
        model = model_config(file.options, len(vocabulary), file.weights)
        weights = _plain(model_weights(file.weights, model))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    config = _config(model, file.options, _unit(vocabulary, bpe_codes))
    state = {"update": file.updates, "imported_from": str(checkpoint)}
    contents = checkpoints.Checkpoint(weights, {}, state, to_dict(config))
    with new_folder(out) as folder:
        checkpoints.save(folder, contents, lambda place: _add_texts(place, vocabulary, bpe_codes))
        checkpoints.write_json(folder / "config.json", to_dict(config))
    return config


def _require_size(dictionary: Source, vocabulary: Vocabulary, file: CheckpointFile) -> None:
    size = vocabulary_size(file.weights)
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


def _unit(vocabulary: Vocabulary, bpe_codes: Source | None) -> Literal["word", "bpe"]:
    continued = sum(word.endswith(CONTINUES) for word in vocabulary.words)
    is_bpe = continued > _SHARE_OF_CONTINUED_PIECES * len(vocabulary)
    return "bpe" if is_bpe or bpe_codes is not None else "word"


def _config(model: ModelConfig, options: dict[str, Any], unit: Literal["word", "bpe"]) -> Config:
    """A run's config; how the model was trained is fairseq's and not translated."""
    block = options.get("tokens_per_sample")
    block = block if isinstance(block, int) and block >= 1 else BatchConfig().block
    tokens = max(block, BatchConfig().tokens)
    return Config(
        **{field.name: getattr(model, field.name) for field in fields(ModelConfig)},
        name=f"fairseq/{options.get('arch') or 'transformer_lm'}",
        batches=BatchConfig(unit=unit, block=block, tokens=tokens, eval_block=block),
    )


def _add_texts(folder: Path, vocabulary: Vocabulary, bpe_codes: Source | None) -> None:
    vocabulary.save(folder / "vocabulary.txt")
    if bpe_codes is not None:
        shutil.copyfile(bpe_codes, folder / CODES_FILE)
