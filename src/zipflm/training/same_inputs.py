"""Several processes train one model on one text, into one folder: checked before they start.

Machines that each have a disk of their own may see another text under the same name, or a run
folder that the others do not see. Nothing would tell: the processes would average the gradients of
different models, or wait for each other in operations of different sizes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from zipflm import __version__
from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.folders import LOCK
from zipflm.records import to_dict
from zipflm.training.distributed import Process, all_values, raise_together

_SLOW_TO_SHOW = 60.0
"""Seconds after which a network file system shows a new file on other machines."""
_PAUSE = 0.5


def require_same_inputs(config: Config, data: DataFolder, process: Process) -> None:
    """ValueError in every process unless all have the same text and settings."""
    if process.world_size == 1:
        return
    same = f"give all processes the same folder, or copies of it (here {data.path})"
    own = {"the vocabulary": (data.vocabulary.hash, same)}
    for split in data.splits:
        own[f"the {split} text"] = (data.split(split).sha256, same)
    settings = _flat(to_dict(config)) | {"zipflm": __version__, "torch": torch.__version__}
    for name, value in settings.items():
        own[name] = (str(value), "give all processes the same command, of the same packages")
    values = all_values(own, process)
    for rank, other in enumerate(values):
        for name in values[0] | other:
            ours, theirs = (each.get(name, ("not there", same)) for each in (values[0], other))
            if ours[0] != theirs[0]:
                raise ValueError(
                    f"{name} is {_short(ours[0])} in process 0, but {_short(theirs[0])} in process "
                    f"{rank}; {values[0].get(name, theirs)[1]}"
                )


def require_shared(folder: Path, process: Process) -> None:
    """ValueError in every process unless all see this folder, in which the first one holds the
    lock."""
    if process.world_size == 1:
        return
    signed = _signature(folder)
    expected = all_values(signed if process.is_first else "", process)[0]
    end = time.monotonic() + _SLOW_TO_SHOW
    while _signature(folder) != expected and time.monotonic() < end:
        time.sleep(_PAUSE)
    problem = None
    if _signature(folder) != expected:
        problem = (
            f"process {process.rank} does not see what process 0 writes to {folder}; --out must be "
            "a folder that all machines share"
        )
    raise_together(problem, process)


def _signature(folder: Path) -> str:
    """Who holds the lock of the folder, as far as can be seen from here."""
    try:
        os.listdir(folder)  # so that a network file system looks again
        return (folder / LOCK).read_text(encoding="utf-8")
    except OSError:
        return "cannot be seen"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _short(value: str) -> str:
    """Enough of a checksum to tell it from another."""
    return value if len(value) <= 20 else f"{value[:12]}..."
