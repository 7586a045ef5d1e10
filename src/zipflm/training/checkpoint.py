"""A checkpoint is a folder that is whole or not there; safetensors and JSON, never pickle.

    checkpoints/update-00000123/
        weights.safetensors     under the names of `LanguageModel.state_dict`
        optimizer.safetensors   `weight's name/what it is`
        state.json              update, place in the data, seed, validation result
        config.json  vocabulary.txt  [more of the data folder]  checksums.json

It is written under a name with a leading dot, flushed to disk and renamed, so a folder with the
final name is complete, whatever moment the process or the machine died. One that was damaged later
is renamed to .damaged-update-... when a run is resumed from one before it. Random states are not
stored: the generators are seeded anew at every update from (seed, update, rank).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from zipflm.data.folder import new_folder

_NAME = re.compile(r"update-(\d{8,})")
_CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint, in memory."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    config: dict[str, Any]


def save(run: Path, checkpoint: Checkpoint, write_more: Callable[[Path], None]) -> Path:
    """Write a checkpoint of a run; `write_more` adds vocabulary and the like to its folder.

    OSError if that fails, after which everything saved before is as it was.
    """
    final = run / "checkpoints" / f"update-{checkpoint.state['update']:08d}"
    try:
        with new_folder(final) as folder:
            _write_files(folder, checkpoint, write_more)
    except SafetensorError as error:  # its way of saying "disk full"
        raise OSError(f"{final}: {error}") from error
    return final


def _write_files(folder: Path, checkpoint: Checkpoint, write_more: Callable[[Path], None]) -> None:
    save_file(checkpoint.weights, folder / "weights.safetensors")
    save_file(checkpoint.optimizer, folder / "optimizer.safetensors")
    write_json(folder / "state.json", checkpoint.state)
    write_json(folder / "config.json", checkpoint.config)
    write_more(folder)
    sums = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    write_json(folder / _CHECKSUMS, sums)
    for path in folder.iterdir():
        _flush(path)
    _flush(folder)


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint; ValueError names the file that is damaged or missing."""
    verify(folder)
    return Checkpoint(
        weights=_read_tensors(folder / "weights.safetensors"),
        optimizer=_read_tensors(folder / "optimizer.safetensors"),
        state=read_json(folder / "state.json"),
        config=read_json(folder / "config.json"),
    )


def verify(folder: Path) -> None:
    """Compare every file with its checksum; ValueError names the first that differs."""
    for name, expected in read_json(folder / _CHECKSUMS).items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: missing from this checkpoint")
        if _checksum(path) != expected:
            raise ValueError(f"{path}: damaged; its checksum is not the one it was saved with")


def load_newest(run: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is not damaged, or None if the run has none at all.

    Each damaged one is reported by name; ValueError if there is no other.
    """
    folders = newest_first(run)
    for folder in folders:
        try:
            return load(folder)
        except ValueError as error:
            warn(f"{error}; falling back to the checkpoint before it")
    if folders:
        raise ValueError(
            f"{run}: none of its {len(folders)} checkpoints can be read; restore one of them, or "
            "remove the folder to train again"
        )
    return None


def newest_first(run: Path) -> list[Path]:
    """The complete checkpoints of a run."""
    root = run / "checkpoints"
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
    return sorted(found, key=_update_of, reverse=True)


def _update_of(folder: Path) -> int:
    return int(folder.name.removeprefix("update-"))


def best(run: Path) -> Path | None:
    """The checkpoint with the lowest perplexity on the valid set, of those that were scored and
    are not damaged."""
    scored: list[tuple[float, Path]] = []
    for folder in newest_first(run):
        try:
            valid = read_json(folder / "state.json").get("valid")
        except ValueError:  # damaged: no candidate
            continue
        if valid:
            scored.append((valid["perplexity"], folder))
    for _, folder in sorted(scored):
        try:
            verify(folder)
        except ValueError:
            continue
        return folder
    return None


def prune(run: Path, keep: int, saved: Path) -> None:
    """Remove all but the newest `keep` checkpoints, of which `saved` is one whatever its number,
    and the best one; 0 keeps all."""
    if keep == 0:
        return
    kept = {saved, best(run)}
    for folder in [folder for folder in newest_first(run) if folder != saved][keep - 1 :]:
        if folder not in kept:
            # First out of sight: a folder half removed must not pass for a checkpoint.
            doomed = folder.with_name("." + folder.name)
            os.rename(folder, doomed)
            shutil.rmtree(doomed)


def set_aside(run: Path, update: int) -> list[Path]:
    """Rename the checkpoints after `update`, which could not be read, so that they pass for
    checkpoints no longer; their new paths."""
    moved = []
    for folder in newest_first(run):
        if _update_of(folder) > update:
            aside = folder.with_name(f".damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)  # of the same update, longer ago
            os.rename(folder, aside)
            moved.append(aside)
    return moved


def clean(run: Path) -> None:
    """Remove what a killed process left unfinished."""
    for path in (run / "checkpoints").glob(".update-*"):
        shutil.rmtree(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(as_json(value), encoding="utf-8")


def as_json(value: Mapping[str, Any]) -> str:
    """How every JSON file of a run is written."""
    return json.dumps(value, indent=1) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except ValueError:
        raise ValueError(f"{path}: damaged; not JSON") from None
    return value


def _read_tensors(path: Path) -> dict[str, Tensor]:
    # Copies: what safetensors gives lies in the file, which may be removed while the run goes on.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
