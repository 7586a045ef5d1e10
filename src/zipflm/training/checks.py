"""Check the config of a run against its data, folder, initial weights and the other processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from zipflm import __version__
from zipflm.config import Config, require
from zipflm.data.folder import METADATA_FILE, DataFolder
from zipflm.data.vocabulary import CONTINUES
from zipflm.data.windows import require_short_lines
from zipflm.distributed.processes import Process
from zipflm.field_help import fields_of
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import empty_model
from zipflm.runs.records import Provenance
from zipflm.training.schedule import stretch_schedule
from zipflm.training.stream import accumulation, tokens_per_batch, training_batches

_FIXED = ("batches.unit", "training.optimizer", "training.seed")
"""Settings of batches and training that cannot change when a run is resumed. With another seed,
parts of the text would be repeated or skipped."""


def check_data(config: Config, data: DataFolder) -> None:
    """Raise ValueError if the config and the data do not match."""
    if config.batches.unit != data.unit:
        remedy = "with --bpe" if config.batches.unit == "bpe" else "without --bpe"
        raise ValueError(
            f"{data.path}: the unit is {data.unit}, but {config.name} needs {config.batches.unit}; "
            f"prepare a folder {remedy}, or choose another factorization"
        )
    train = data.metadata.splits.get("train")
    if train and data.unit == "word" and train.is_in_pieces:
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
    check_lines(config, data, "train", "valid")


def check_lines(config: Config, data: DataFolder, *splits: str) -> None:
    """Raise ValueError if lines of these splits are far too long for their break mode."""
    for split in filter(data.splits.__contains__, splits):
        blocks, remedy, option = config.batches.blocks, "use batches.break_mode=none", ""
        if split != "train":
            blocks, option = config.batches.eval_blocks, "batches.eval_block"
            remedy = "use batches.eval_break_mode=none"
        text, longest = f"{data.path}, {split} split", data.tokens(split).longest_sentence
        require_short_lines(longest, blocks, config.decoder, text, remedy, option)


def check_run_folder(
    run: RunFolder, config: Config, data: DataFolder, *, resume: bool, other_text: bool = False
) -> None:
    """Raise ValueError if a run cannot be started in the folder or, with `resume`, continued.

    `other_text` allows a different training text with the same vocabulary.
    """
    done = run.checkpoints()
    if not run.holds_a_run:
        if done:
            raise ValueError(
                f"{run.path}: has checkpoints but no config.json; restore it, or choose another "
                "folder"
            )
        if (run.path / METADATA_FILE).exists():
            raise ValueError(f"{run.path}: this is a data folder; choose another folder")
        return
    held = run.config()
    if not resume and (done or run.log_path.exists()):
        raise ValueError(
            f"{run.path} already holds a run of {held.name} "
            f"({done[0].name if done else 'no checkpoint yet'}); to continue it, add --resume; to "
            f"start a run of {config.name}, choose another folder"
        )
    if not resume:  # stopped before its first log line
        return
    versions = run.versions()
    if versions is None:
        raise ValueError(f"{run.path}: an imported model cannot be resumed; choose another folder")
    _require_same_data(run.path, versions.latest, data, other_text)
    # Other settings of batches and training can change, such as the block length or the schedule.
    require_same_config(
        run.path,
        held,
        config,
        can_change=lambda key: key.startswith(("batches.", "training.")) and key not in _FIXED,
    )


def _require_same_data(out: Path, held: Provenance, data: DataFolder, other_text: bool) -> None:
    if held.vocabulary != data.vocabulary.hash:
        raise ValueError(
            f"{out} was trained with the vocabulary {held.vocabulary[:12]}, but {data.path} has "
            f"{data.vocabulary.hash[:12]}; resume with the data folder it was started with"
        )
    if held.splitting != data.splitting:
        raise ValueError(
            f"{out} was trained on text prepared with {held.splitting}, but {data.path} was "
            f"prepared with {data.splitting}; resume with text split in the same way"
        )
    text = data.split("train").sha256
    if held.text != text and not other_text:
        raise ValueError(
            f"{out} was trained on the text {held.text[:12]} (from {held.data}), but the training "
            f"text of {data.path} is {text[:12]}; resume with the same text, choose another "
            "folder, or add --other-text to continue with this text"
        )


def require_same_config(
    out: Path,
    held: Config,
    requested: Config,
    *,
    can_change: Callable[[str], bool],
    otherwise: str = "",
) -> None:
    """Raise ValueError for the first setting that differs, unless `can_change` is True for its key.

    `otherwise` is another remedy.
    """
    for key, before, now in different_settings(held, requested):
        if not can_change(key):
            raise ValueError(
                f"{out} holds a run of {held.name} with {key}={before}, not the {now} requested; "
                f"resume with the same preset, recipe and overrides{otherwise}"
            )


def different_settings(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, old value and new value of every setting that differs."""
    before, after = ({field.key: field.value for field in fields_of(c)} for c in (old, new))
    for key in after | before:
        values = before.get(key, "none"), after.get(key, "none")
        if values[0] != values[1]:
            yield key, *values


def check_initial(initial: Checkpoint, config: Config, data: DataFolder) -> None:
    """Raise ValueError unless a run with this config and data can start from these weights."""
    codes, splitting = initial.codes(), initial.splitting()
    is_same = (
        initial.vocabulary().hash == data.vocabulary.hash
        and (codes and codes.hash) == (data.codes and data.codes.hash)
        and splitting == data.splitting
    )
    if not is_same:
        raise ValueError(
            f"{data.path}: not prepared like the data of {initial.path}; prepare the text "
            f"again, with --vocabulary {initial.path}"
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
