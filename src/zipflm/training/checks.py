"""Check the config of a run against its data, its initial weights and the other processes."""

from __future__ import annotations

import math

import torch

from zipflm import __version__
from zipflm.config import Config, require
from zipflm.data.folder import CODES_FILE, VOCABULARY_FILE, DataFolder
from zipflm.data.vocabulary import CONTINUES
from zipflm.distributed.processes import Process
from zipflm.field_help import fields_of
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.load import empty_model
from zipflm.training.schedule import stretch_schedule
from zipflm.training.stream import accumulation, tokens_per_batch, training_batches

_MAX_SHARE_OF_CONTINUED_WORDS = 0.05
"""If a larger fraction of the words end in subword-nmt's @@, the text counts as split by BPE."""


def check_data(config: Config, data: DataFolder) -> None:
    """Raise ValueError if the config and the data do not match."""
    if config.batches.unit != data.unit:
        remedy = "with --bpe" if config.batches.unit == "bpe" else "without --bpe"
        raise ValueError(
            f"{data.path}: the unit is {data.unit}, but {config.name} needs {config.batches.unit}; "
            f"prepare a folder {remedy}, or choose another factorization"
        )
    train = data.metadata.splits.get("train")
    if (
        train
        and data.unit == "word"
        and train.continued > _MAX_SHARE_OF_CONTINUED_WORDS * train.words
    ):
        raise ValueError(
            f"{data.path}: {train.continued:,} of the {train.words:,} words of its training text "
            f"end in {CONTINUES}: it is already split into pieces; prepare the original text "
            "with --bpe or --bpe-codes"
        )
    if config.vocab_size != len(data.vocabulary):
        raise ValueError(
            f"vocab_size={config.vocab_size}: {data.path} has {len(data.vocabulary)} ids; use "
            "recipes.resolve to fit the config to the folder"
        )
    require(
        not config.training.patience or "valid" in data.splits,
        "training.patience",
        config.training.patience,
        f"needs a validation set, but {data.path} has none; prepare it with --valid",
    )


def check_initial(initial: Checkpoint, config: Config, data: DataFolder) -> None:
    """Raise ValueError unless a run with this config and data can start from these weights."""
    codes, splitting = initial.codes(), initial.splitting()
    is_same = (
        initial.vocabulary().hash == data.vocabulary.hash
        and (codes and codes.hash) == (data.codes and data.codes.hash)
        and splitting == data.splitting
    )
    if not is_same:
        options = [f"--vocabulary {initial.path / VOCABULARY_FILE}"]
        if codes is not None:
            options.append(f"--bpe-codes {initial.path / CODES_FILE}")
        raise ValueError(
            f"{data.path}: not prepared like the data of {initial.path}; prepare the text "
            f"again: zipflm prepare {' '.join(options)} {splitting}"
        )
    require_weights_of(empty_model(config, data.vocabulary), initial)


def require_weights_of(model: LanguageModel, checkpoint: Checkpoint) -> None:
    """Raise ValueError unless the stored weights have the names and shapes that the model needs."""
    stored = checkpoint.stored_weights()
    needed = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(needed.keys() | stored.shapes.keys()):
        if needed.get(name) != stored.shapes.get(name):
            raise ValueError(
                f"{checkpoint.path}: {name} is {stored.shapes.get(name, 'missing')}, but the model "
                f"needs {needed.get(name, 'none')}; use a checkpoint of the same model"
            )


def epochs_to_updates(config: Config, data: DataFolder) -> Config:
    """Return the config with `training.epochs`, if set, converted to `training.max_updates`."""
    training = config.training
    if not training.epochs:
        return config
    tokens, epochs_per_update, start = data.tokens("train"), 0.0, 0.0
    for end, block in (*training.stages, (1.0, config.batches.block)):
        batches = training_batches(config, tokens, block)
        batches_per_update = training.tokens_per_update / tokens_per_batch(config, block)
        epochs_per_update += (end - start) * batches_per_update / batches.num_batches
        start = end
    # The small number absorbs rounding errors, which could add an update.
    return stretch_schedule(config, max(1, math.ceil(training.epochs / epochs_per_update - 1e-6)))


SAME_INPUTS_REMEDY = "use the same command, data and packages in all processes"


def check_processes(config: Config, data: DataFolder, process: Process) -> None:
    """Raise ValueError in all processes if their number is not supported or their inputs differ."""
    accumulation(config, process)  # raises if an update is not an integer number of batches
    is_on_gpus = process.world_size > 1 and process.device.type == "cuda"
    require(
        not (config.input.sparse and is_on_gpus),
        "input.sparse",
        True,
        "sparse gradients need gloo, but several GPUs use NCCL; use one process or CPUs, or omit "
        "input.sparse",
    )
    texts = {f"the {split} text": data.split(split).sha256 for split in data.splits}
    packages = {"zipflm": __version__, "torch": torch.__version__}
    settings: dict[str, object] = {field.key: field.text for field in fields_of(config)}
    same = {"the vocabulary": data.vocabulary.hash} | texts | packages | settings
    process.require_same(same, SAME_INPUTS_REMEDY)
