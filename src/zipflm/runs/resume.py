"""What may be started or continued in a run folder; everything else is refused with a reason."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from zipflm.config import Config, ModelConfig
from zipflm.data.folder import FACTS_FILE, DataFolder
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Provenance
from zipflm.settings import to_dict


def check(
    run: RunFolder, config: Config, data: DataFolder, *, resume: bool, other_text: bool = False
) -> None:
    """ValueError if this run may not be started, or with `resume` continued, in the folder.

    With `other_text` it may be continued on another training text of the same vocabulary.
    """
    if not run.holds_a_run:
        if run.checkpoints():
            raise ValueError(
                f"{run.path}: has checkpoints but no config.json; choose another --out"
            )
        if (run.path / FACTS_FILE).exists():
            raise ValueError(f"{run.path}: holds data; choose another --out")
        return
    held = run.config()
    if not resume:
        _require_unused(run, held, config)
        return
    versions = run.versions()
    if versions is None:
        raise ValueError(
            f"{run.path}: was trained elsewhere and cannot be resumed; choose another --out"
        )
    _require_same_data(run.path, versions.latest, data, other_text)
    # Length, batches and devices may change on the way; the model and its optimizer may not.
    _require_equal(run.path, _identity(held), _identity(config))


def require_same_config(out: Path, held: Config, asked: Config, otherwise: str) -> None:
    """ValueError that names the first field in which the run in `out` is not what was asked for;
    `otherwise` is a remedy besides asking for the same."""
    _require_equal(out, to_dict(held), to_dict(asked), f", or {otherwise}")


def _require_unused(run: RunFolder, held: Config, asked: Config) -> None:
    done = run.checkpoints()
    if not done and not run.log_path.exists():
        return  # it ended before its first update, for lack of memory perhaps
    raise ValueError(
        f"{run.path} already holds a run of {held.name} "
        f"({done[0].name if done else 'no checkpoint yet'}); to continue it add --resume, to "
        f"start a run of {asked.name} choose another --out"
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
            f"prepared with {data.splitting}; resume with text that was split alike"
        )
    text = data.split("train").sha256
    if held.text != text and not other_text:
        raise ValueError(
            f"{out} was trained on the text {held.text[:12]} (from {held.data}), but the training "
            f"text of {data.path} is {text[:12]}; go on with the text it was started with, or "
            "choose another --out; zipflm train --resume --other-text goes on with this one"
        )


def _identity(config: Config) -> dict[str, Any]:
    values = to_dict(config)
    return {field.name: values[field.name] for field in fields(ModelConfig)} | {
        "name": config.name,
        "optimizer": type(config.training.optimizer).__name__,
        "unit": config.batches.unit,
        # Another seed shuffles otherwise: part of the text would come twice, part of it never.
        "seed": config.training.seed,
    }


def _require_equal(
    out: Path, held: dict[str, Any], asked: dict[str, Any], otherwise: str = ""
) -> None:
    for name in asked:
        if held[name] != asked[name]:
            raise ValueError(
                f"{out} holds a run of {held['name']} with {_first_difference(name, held, asked)} "
                f"asked for; resume with the same preset, recipe and overrides{otherwise}"
            )


def _first_difference(name: str, held: dict[str, Any], asked: dict[str, Any]) -> str:
    old, new = held[name], asked[name]
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            if old[key] != new[key]:
                return _first_difference(key, old, new).replace(key, f"{name}.{key}", 1)
    return f"{name}={old}, not the {new}"
