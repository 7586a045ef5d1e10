"""The run folder: what was run, with which versions, its log and its checkpoints.

config.json     the resolved config
versions.json   packages, commit, vocabulary and data folder; `resumed`: the same each time it was
log.jsonl       one object per report
checkpoints/    see `checkpoint`
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from zipflm.config import Config, ModelConfig
from zipflm.data.folder import DataFolder
from zipflm.overrides import from_dict, to_dict
from zipflm.training.checkpoint import as_json, clean, newest_first, read_json

_PACKAGES = ("zipflm", "torch", "numpy", "safetensors", "tokenizers", "triton")


def check(out: Path, config: Config, data: DataFolder, resume: bool) -> None:
    """ValueError if this run may not be started, or continued, in the folder `out`."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: is a file; give a folder as --out")
    if not (out / "config.json").is_file():
        if newest_first(out):
            raise ValueError(f"{out}: has checkpoints but no config.json; choose another --out")
        return
    held = from_dict(Config, read_json(out / "config.json"))
    if not resume:
        done = newest_first(out)
        if not done and not (out / "log.jsonl").exists():
            return  # it ended before its first update, for lack of memory perhaps
        raise ValueError(
            f"{out} already holds a run of {held.name} "
            f"({done[0].name if done else 'no checkpoint yet'}); to continue it add --resume, to "
            f"start a run of {config.name} choose another --out"
        )
    vocabulary = read_json(out / "versions.json")["vocabulary"]
    if vocabulary != data.vocabulary.hash:
        raise ValueError(
            f"{out} was trained with the vocabulary {vocabulary[:12]}, but {data.path} has "
            f"{data.vocabulary.hash[:12]}; resume with the data folder it was started with"
        )
    _require_same(out, held, config)


def _require_same(out: Path, held: Config, asked: Config) -> None:
    """Length, batches and devices may change on the way; the model and its optimizer may not."""
    names = [f.name for f in fields(ModelConfig)] + ["name"]
    old, new = to_dict(held), to_dict(asked)
    for config in (old, new):
        config["optimizer"] = config["training"]["optimizer"]["kind"]
        config["unit"] = config["batches"]["unit"]
    compared = [*names, "optimizer", "unit"]
    require_equal(out, {n: old[n] for n in compared}, {n: new[n] for n in compared})


def require_equal(
    out: Path, held: dict[str, Any], asked: dict[str, Any], otherwise: str = ""
) -> None:
    """ValueError that names the first field in which the run in `out` is not what was asked for;
    `otherwise` is a remedy besides asking for the same."""
    for name in asked:
        if held[name] != asked[name]:
            raise ValueError(
                f"{out} holds a run of {held['name']} with {_first_difference(name, held, asked)} "
                "asked for; resume with the same preset, recipe and overrides"
                + (f", or {otherwise}" if otherwise else "")
            )


def _first_difference(name: str, old: Any, new: Any) -> str:
    old, new = old[name], new[name]
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            if old[key] != new[key]:
                return _first_difference(key, old, new).replace(key, f"{name}.{key}", 1)
    return f"{name}={old}, not the {new}"


def prepare(out: Path, config: Config, data: DataFolder, update: int) -> None:
    """Write what identifies the run, and remove what a killed process did after `update`, from
    which the run is resumed; 0 for one that starts."""
    out.mkdir(parents=True, exist_ok=True)
    clean(out)
    _trim_log(out / "log.jsonl", update)
    facts = versions() | {"vocabulary": data.vocabulary.hash, "data": str(data.path.resolve())}
    if update > 0:
        # What the run was started with stays where it was.
        first = read_json(out / "versions.json")
        facts = first | {"resumed": [*first.get("resumed", []), {"update": update} | facts]}
    _write_whole(out / "versions.json", as_json(facts))
    # Last, because its presence says that the folder holds a run.
    _write_whole(out / "config.json", as_json(to_dict(config)))


def versions() -> dict[str, Any]:
    """Python, packages, and the commit this package was run from, if it was a checkout."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "packages": packages, "commit": _commit()}


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _trim_log(path: Path, update: int) -> None:
    """Drop what was logged after `update`, and a last line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["update"] <= update:
                kept.append(line + "\n")
        except ValueError:
            continue
    _write_whole(path, "".join(kept))


def read_log(run: Path) -> list[dict[str, Any]]:
    """The objects of a run's log."""
    path = run / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{run}: no run folder (no log.jsonl)")
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:  # the last line of a run that was killed, or is running
            continue
    return entries


def _write_whole(path: Path, text: str) -> None:
    """The file has its old content or the new one, whatever moment the process dies."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
