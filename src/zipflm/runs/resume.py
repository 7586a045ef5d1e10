"""Checks before a run is started or resumed in a folder."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from zipflm.config import Config
from zipflm.data.folder import METADATA_FILE, DataFolder
from zipflm.field_help import fields_of
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Provenance

# Settings of batches and training that cannot change when a run is resumed. With another seed,
# parts of the text would be repeated or skipped.
_FIXED = ("batches.unit", "training.optimizer", "training.seed")


def check(
    run: RunFolder, config: Config, data: DataFolder, *, resume: bool, other_text: bool = False
) -> None:
    """Raise ValueError if a run cannot be started in the folder or, with `resume`, continued.

    `other_text` allows a different training text with the same vocabulary.
    """
    if not run.holds_a_run:
        if run.checkpoints():
            raise ValueError(
                f"{run.path}: has checkpoints but no config.json; choose another folder"
            )
        if (run.path / METADATA_FILE).exists():
            raise ValueError(f"{run.path}: this is a data folder; choose another folder")
        return
    held = run.config()
    if not resume:
        _require_unused(run, held, config)
        return
    versions = run.versions()
    if versions is None:
        raise ValueError(f"{run.path}: an imported model cannot be resumed; choose another folder")
    _require_same_data(run.path, versions.latest, data, other_text)
    # Other settings of batches and training can change, such as the block length or the schedule.
    _require_equal(run.path, _identity(held), _identity(config))


def require_same_config(
    out: Path, held: Config, requested: Config, *, ignored: Collection[str], otherwise: str
) -> None:
    """Raise ValueError for the first setting, except `ignored` ones, that differs.

    `otherwise` is another remedy.
    """
    _require_equal(
        out, _settings(held, ignored), _settings(requested, ignored), f", or {otherwise}"
    )


def _require_unused(run: RunFolder, held: Config, requested: Config) -> None:
    done = run.checkpoints()
    if not done and not run.log_path.exists():
        return  # stopped before its first log line
    raise ValueError(
        f"{run.path} already holds a run of {held.name} "
        f"({done[0].name if done else 'no checkpoint yet'}); to continue it, add --resume; to "
        f"start a run of {requested.name}, choose another folder"
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


def _settings(config: Config, ignored: Collection[str] = ()) -> dict[str, object]:
    return {field.key: field.value for field in fields_of(config) if field.key not in ignored}


def _identity(config: Config) -> dict[str, object]:
    return {
        key: value
        for key, value in _settings(config).items()
        if key in _FIXED or not key.startswith(("batches.", "training."))
    }


def _require_equal(
    out: Path, held: dict[str, object], requested: dict[str, object], otherwise: str = ""
) -> None:
    for key in requested | held:
        old, new = held.get(key, "none"), requested.get(key, "none")
        if old != new:
            raise ValueError(
                f"{out} holds a run of {held['name']} with {key}={old}, not the {new} requested; "
                f"resume with the same preset, recipe and overrides{otherwise}"
            )
