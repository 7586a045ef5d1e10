"""What a run needs before its first update: checks, the model, and what trains it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.model.language_model import LanguageModel
from zipflm.training import distributed, optimizers, step
from zipflm.training.distributed import Process
from zipflm.training.step import Learner
from zipflm.training.stream import blocks_of


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


def accumulation(config: Config, process: Process, block: int | None = None) -> int:
    """Batches of blocks of that length, `batches.block` unless given, that each process accumulates
    for an update; ValueError unless all lengths of the run make up whole updates."""
    wanted = config.training.tokens_per_update
    at_once = {b: tokens_per_batch(config, b) * process.world_size for b in blocks_of(config)}
    if wanted % (common := math.lcm(*at_once.values())):
        short = next(b for b, tokens in at_once.items() if wanted % tokens)
        nearest = max(round(wanted / common), 1) * common
        raise ValueError(
            f"training.tokens_per_update={wanted}: not a multiple of the {at_once[short]} tokens "
            f"that {process.world_size} device(s) x {_batch(config, short)} process at once; use "
            f"training.tokens_per_update={nearest}, or change batches.tokens"
        )
    return wanted // (tokens_per_batch(config, block or config.batches.block) * process.world_size)


def tokens_per_batch(config: Config, block: int) -> int:
    """Tokens that go through a device at once: whole blocks, or at most so many if sentences."""
    tokens = config.batches.tokens
    return tokens // block * block if config.batches.break_mode == "none" else tokens


def _batch(config: Config, block: int) -> str:
    """How `batches.tokens` become a batch."""
    tokens = tokens_per_batch(config, block)
    if tokens == config.batches.tokens:
        return f"batches.tokens={tokens}"
    return f"{tokens} tokens (whole blocks of {block} in batches.tokens={config.batches.tokens})"


def overview(config: Config, process: Process) -> Iterator[str]:
    """The model's size by part, and how the tokens of an update come about."""
    parts = config.params_by_part()
    width = max(map(len, parts))
    yield f"{config.name}: {config.num_params():,} parameters"
    for part, count in parts.items():
        yield f"  {part:{width}}  {count:>13,}"
    yield from dict.fromkeys(_update_line(config, process, block) for block in blocks_of(config))


def _update_line(config: Config, process: Process, block: int) -> str:
    tokens = tokens_per_batch(config, block)
    number = f"{config.training.tokens_per_update:,} tokens per update"
    if config.batches.break_mode != "none":
        number = f"at most {number}, padding included,"
    blocks = f" ({tokens // block} x {block})" if tokens != config.batches.tokens else ""
    return (
        f"{number} = {process.world_size} device(s) x {tokens:,} tokens{blocks} x "
        f"{accumulation(config, process, block)} accumulated"
    )


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
