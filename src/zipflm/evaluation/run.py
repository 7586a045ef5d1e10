"""Run folders, read: the model of a checkpoint with its config and its vocabulary.

    run/config.json  run/checkpoints/update-00000123/{weights.safetensors, config.json,
        vocabulary.txt, [bpe.codes], state.json, checksums.json, ...}

Everything needed to score text lies in a checkpoint's folder. Writing one is training's business;
nothing here knows of optimizers.
"""

from __future__ import annotations

import hashlib
import json
import re
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zipflm.config import CharacterInput, Config
from zipflm.data.characters import spellings
from zipflm.data.vocabulary import Vocabulary
from zipflm.model.language_model import LanguageModel
from zipflm.overrides import from_dict

_NAME = re.compile(r"update-\d{8,}")


def load_run(path: str | PathLike[str]) -> tuple[LanguageModel, Config, Vocabulary]:
    """The model, in evaluation mode, of a run folder's newest checkpoint or of one checkpoint.

    Raises ValueError, naming the file, for what is missing, damaged or does not fit.
    """
    folder = checkpoint_folder(path)
    _verify(folder)
    config = from_dict(Config, _read_json(folder / "config.json"))
    vocabulary = Vocabulary.load(folder / "vocabulary.txt")
    if len(vocabulary) != config.vocab_size:
        raise ValueError(
            f"{folder}: its vocabulary has {len(vocabulary)} words, its config vocab_size="
            f"{config.vocab_size}; the folder was put together from two runs"
        )
    model = build(config, vocabulary, _read_weights(folder / "weights.safetensors"))
    return model, config, vocabulary


def checkpoint_folder(path: str | PathLike[str]) -> Path:
    """The checkpoint itself, or the newest of a run; unfinished ones have another name."""
    path = Path(path)
    if (path / "weights.safetensors").is_file():
        return path
    root = path / "checkpoints"
    found = (
        [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name)] if root.is_dir() else []
    )
    if not found:
        raise ValueError(
            f"{path}: no run with a checkpoint; give the --out of zipflm train or import-fairseq, "
            "or one folder of its checkpoints/"
        )
    return max(found, key=lambda entry: int(entry.name.removeprefix("update-")))


def build(config: Config, vocabulary: Vocabulary, weights: dict[str, Tensor]) -> LanguageModel:
    """A model with these weights, in evaluation mode; nothing is initialised in between."""
    table = None
    if isinstance(config.input, CharacterInput):
        table = torch.from_numpy(spellings(vocabulary, config.input.max_bytes))
    with torch.device("meta"):
        model = LanguageModel(config, table)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # its text lists names and shapes
        reason = " ".join(str(error).split())
        raise ValueError(f"weights do not fit the config: {reason}") from None
    return model.eval()


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from this checkpoint") from None
    except SafetensorError as error:
        raise ValueError(f"{path}: cut short or damaged: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: missing from this checkpoint") from None
    except ValueError:
        raise ValueError(f"{path}: damaged; not JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: damaged; not a JSON object")
    return value


def _verify(folder: Path) -> None:
    """Compare the files with the checksums they were saved with, if there are any."""
    if not (folder / "checksums.json").is_file():
        return
    for name, expected in _read_json(folder / "checksums.json").items():
        if name.startswith("optimizer"):  # of no consequence here, and twice the size
            continue
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: missing from this checkpoint")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"{path}: damaged; not as it was saved")
