"""`zipflm consolidate`: of a checkpoint that several processes saved, one file of each kind.

The folder stays where it is, and is a whole checkpoint at every moment: the new files are written
beside the shards, then `checksums.json` is replaced, which says of what the checkpoint consists,
and only then the shards go. Killed in between, the same command finishes the work.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from zipflm.checksums import seal
from zipflm.files import naming_full_disk, written_whole
from zipflm.runs.checkpoint import OPTIMIZER, WEIGHTS, Checkpoint, is_shard
from zipflm.runs.folder import Choice, locate
from zipflm.runs.stored_tensors import StoredTensors


@dataclass(frozen=True)
class Consolidated:
    """What there was to do."""

    checkpoint: Checkpoint
    num_shards: int
    """Processes whose shards were put together; 0 if that had been done before."""


def consolidate(path: str | PathLike[str], choice: Choice | None = None) -> Consolidated:
    """Consolidate the newest or chosen checkpoint of a run, or one checkpoint by its own folder.

    Takes memory for all weights, and then for the whole state of the optimizer. ValueError or
    OSError, after which the shards are as they were, if that does not work.
    """
    run, checkpoint = locate(Path(path), choice)
    # A run in progress may be about to remove the checkpoint.
    with run.lock() if run.holds_a_run else nullcontext():
        num_shards = checkpoint.num_shards
        if num_shards:
            checkpoint.verify()
            _join(checkpoint)
        _remove_shards(checkpoint.path)
    return Consolidated(Checkpoint(checkpoint.path), num_shards)


def _join(checkpoint: Checkpoint) -> None:
    with naming_full_disk(checkpoint.path, "the shards are as they were; free some space"):
        _write(checkpoint.stored_weights(), checkpoint.path / WEIGHTS)
        _write(checkpoint.stored_optimizer(), checkpoint.path / OPTIMIZER)
        shards = {*checkpoint.weights_files, *checkpoint.optimizer_files}
        known = {name: sha for name, sha in checkpoint.checksums.items() if name not in shards}
        seal(checkpoint.path, known, leaving_out=is_shard)


def _write(stored: StoredTensors, path: Path) -> None:
    tensors = {name: stored.read(name) for name in sorted(stored.names)}
    try:
        with written_whole(path) as unfinished:
            save_file(tensors, unfinished)
    except SafetensorError as error:  # its way of saying "disk full"
        raise OSError(f"{path}: {error}") from error


def _remove_shards(folder: Path) -> None:
    """Of a checkpoint that consists of other files by now."""
    for path in list(folder.iterdir()):
        if is_shard(path.name):
            path.unlink()
