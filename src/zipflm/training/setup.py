"""What a run needs before its first update: checks, the model, and what trains it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zipflm.config import CharacterInput, Config
from zipflm.data.characters import spellings
from zipflm.data.folder import DataFolder
from zipflm.model.language_model import LanguageModel
from zipflm.training import distributed, optimizers, step
from zipflm.training.distributed import Process
from zipflm.training.step import Learner


def check_data(config: Config, data: DataFolder) -> None:
    """ValueError if the folder's ids are not what the config is made for."""
    if config.batches.unit != data.unit:
        remedy = "with --bpe" if config.batches.unit == "bpe" else "without --bpe"
        raise ValueError(
            f"{data.path}: its unit is {data.unit}, but {config.name} reads {config.batches.unit}; "
            f"prepare a folder {remedy}, or choose another factorization"
        )
    if config.vocab_size != len(data.vocabulary):
        raise ValueError(
            f"vocab_size={config.vocab_size}: {data.path} has {len(data.vocabulary)} ids; use "
            "recipes.resolve or fit_vocabulary to fit the config to the folder"
        )


def accumulation(config: Config, process: Process) -> int:
    """Batches that each process accumulates for an update."""
    at_once = config.batches.tokens * process.world_size
    wanted = config.training.tokens_per_update
    if wanted % at_once:
        nearest = max(round(wanted / at_once), 1) * at_once
        raise ValueError(
            f"training.tokens_per_update={wanted}: not a multiple of the {at_once} tokens that "
            f"{process.world_size} device(s) x batches.tokens={config.batches.tokens} process at "
            f"once; use training.tokens_per_update={nearest}, or change batches.tokens"
        )
    return wanted // at_once


def overview(config: Config, process: Process, num_batches: int) -> Iterator[str]:
    """The model's size by part, and how the tokens of an update come about."""
    parts = config.params_by_part()
    width = max(map(len, parts))
    yield f"{config.name}: {config.num_params():,} parameters"
    for part, count in parts.items():
        yield f"  {part:{width}}  {count:>13,}"
    yield (
        f"{config.training.tokens_per_update:,} tokens per update = {process.world_size} "
        f"device(s) x {config.batches.tokens:,} tokens x {num_batches} accumulated"
    )


def build_model(config: Config, data: DataFolder) -> LanguageModel:
    """The model with its first weights."""
    # On the CPU and from the same seed everywhere, so that all processes start alike.
    torch.manual_seed(config.training.seed)
    table = None
    if isinstance(config.input, CharacterInput):
        table = torch.from_numpy(spellings(data.vocabulary, config.input.max_bytes))
    return LanguageModel(config, table)


def build_learner(config: Config, model: LanguageModel, process: Process) -> Learner:
    """The model on its device and everything that trains it."""
    training = config.training
    has_one_shape = config.batches.break_mode == "none"
    scorer = distributed.wrap(
        step.Scorer(model),
        model.decoder.layers,
        process,
        training.parallel,
        ("one shape" if has_one_shape else "any shape") if training.compile else "no",
    )
    return Learner(
        model=model,
        scorer=scorer,
        optimizers=optimizers.build(training.optimizer, model),
        scale=step.LossScale(training.precision == "float16", process.device),
        process=process,
        precision=training.precision,
        clip_norm=training.clip_norm,
    )
