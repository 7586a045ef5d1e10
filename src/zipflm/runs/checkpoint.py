"""Checkpoints: folders of safetensors and JSON (no pickle), written atomically.

    checkpoints/update-00000123/
        weights.safetensors     keys as in `LanguageModel.state_dict()`
        optimizer.safetensors   `parameter name/state name`, and carried decoder states, `carried/N`
        state.json              `records.TrainingState` or `ImportedState`
        config.json  vocabulary.txt  [bpe.codes]
        [splitting.json]        rule for splitting text into words; absent if it is the default
        checksums.json          SHA-256 of every other file

If several processes save a checkpoint, they write shards instead of the first two files: the first
process writes its weights to shard-00001-model-00001-of-00002.safetensors and its optimizer state
to shard-00001-model-00002-of-00002.safetensors (`sharded`).

A checkpoint contains everything needed to score text. It is written under a name with a leading
dot, flushed to disk and renamed, so a folder with the final name is complete. If a checkpoint is
damaged later, resuming renames it to .damaged-update-... and uses the previous one. Random states
are not stored: generators are seeded at every update from (seed, update, rank).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from zipflm.config import PLAIN, Config, Splitting
from zipflm.data.bpe import Codes
from zipflm.data.folder import CODES_FILE, SPLITTING_FILE, VOCABULARY_FILE
from zipflm.data.vocabulary import Vocabulary
from zipflm.messages import unquoted
from zipflm.runs.records import SavedState
from zipflm.settings import read_record, read_value, write_record
from zipflm.storage import new_folder, read_checksums, require_unchanged, seal

if TYPE_CHECKING:
    from zipflm.runs.sharded import StoredTensors

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_CONFIG = "config.json"
_NEEDED = (_STATE, _CONFIG, VOCABULARY_FILE)
# Shard names of torch.distributed.checkpoint. The second number is 1 for weights and 2 for the
# optimizer state.
_SHARD = re.compile(r"shard-[0-9]{5,}-model-0000([12])-of-00002\.safetensors")
_WEIGHTS_KIND, _OPTIMIZER_KIND = "1", "2"
_NAME = re.compile(r"update-([0-9]{8,})")


@dataclass(frozen=True)
class Contents:
    """A checkpoint in memory."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: SavedState
    config: Config
    vocabulary: Vocabulary
    codes: Codes | None
    splitting: Splitting


class Checkpoint:
    """A checkpoint on disk, read lazily."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def update(self) -> int:
        return int(self.path.name.removeprefix("update-"))

    @cached_property
    def checksums(self) -> dict[str, str]:
        """SHA-256 by file name. Raises ValueError if a required file is not listed."""
        sums = read_checksums(self.path, _NEEDED)
        if not _shards_of(_WEIGHTS_KIND, sums):
            read_checksums(self.path, (WEIGHTS,))  # raises if it is not listed
        return sums

    @property
    def is_sharded(self) -> bool:
        """True if several processes saved it."""
        return bool(_shards_of(_WEIGHTS_KIND, self.checksums))

    @property
    def weights_files(self) -> list[str]:
        return _shards_of(_WEIGHTS_KIND, self.checksums) or [WEIGHTS]

    @property
    def optimizer_files(self) -> list[str]:
        """Names of the files with the optimizer state. The file of an imported model has no
        tensors."""
        names = _shards_of(_OPTIMIZER_KIND, self.checksums) if self.is_sharded else [OPTIMIZER]
        return [name for name in names if name in self.checksums]

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the weights file, or of the checksums of all shards."""
        sums = [self.checksums[name] for name in self.weights_files]
        return sums[0] if len(sums) == 1 else hashlib.sha256(" ".join(sums).encode()).hexdigest()

    def verify(self, *, optimizer: bool = True) -> None:
        """Compare every file with its checksum. Raises ValueError for the first that differs.

        `optimizer=False` skips the optimizer state, which is up to twice the size of the weights.
        """
        skipped = [] if optimizer else self.optimizer_files
        for name in self.checksums:
            if name not in skipped:
                require_unchanged(self.path, name, self.checksums)

    def state(self) -> SavedState:
        state: SavedState = read_value(SavedState, self.path / _STATE)
        return state

    def config(self) -> Config:
        return read_record(Config, self.path / _CONFIG)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights. A single file is memory-mapped and read on first use."""
        if self.is_sharded:
            return self.stored_weights().read()
        try:
            return load_file(self.path / WEIGHTS)
        except SafetensorError as error:
            reason = unquoted(str(error))
            raise ValueError(f"{self.path / WEIGHTS}: truncated or damaged: {reason}") from None

    def stored_weights(self) -> StoredTensors:
        return self._stored(self.weights_files)

    def stored_optimizer(self) -> StoredTensors:
        return self._stored(self.optimizer_files)

    def _stored(self, names: list[str]) -> StoredTensors:
        from zipflm.runs.sharded import StoredTensors  # slow to import

        return StoredTensors([self.path / name for name in names])

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.path / VOCABULARY_FILE)

    def codes(self) -> Codes | None:
        """Load the BPE codes of a subword model. Returns None for a word model."""
        if CODES_FILE not in self.checksums:
            return None
        return Codes.load(self.path / CODES_FILE)

    def splitting(self) -> Splitting:
        """Load the rule that splits text into words."""
        if SPLITTING_FILE not in self.checksums:
            return PLAIN
        return read_record(Splitting, self.path / SPLITTING_FILE)

    def remove(self) -> None:
        # Rename first: a half-removed folder must not look like a checkpoint.
        doomed = self.path.with_name("." + self.name)
        os.rename(self.path, doomed)
        shutil.rmtree(doomed)


def _shards_of(kind: str, names: Iterable[str]) -> list[str]:
    """Return the names of the shards of the weights or of the optimizer state, sorted."""
    matches = map(_SHARD.fullmatch, sorted(names))
    return [match[0] for match in matches if match and match[1] == kind]


def is_checkpoint(folder: Path) -> bool:
    return (folder / _STATE).is_file()


def has_checkpoint_name(folder: Path) -> bool:
    return _NAME.fullmatch(folder.name) is not None


def save(root: Path, contents: Contents) -> Checkpoint:
    """Write a checkpoint into the folder `root`. After an OSError, earlier ones are intact."""
    final = checkpoint_path(root, contents.state.update)
    try:
        with new_folder(final) as folder:
            save_file(contents.weights, folder / WEIGHTS)
            save_file(contents.optimizer, folder / OPTIMIZER)
            write_all_but_tensors(folder, contents)
            seal(folder)
    except SafetensorError as error:  # raised if the disk is full
        raise OSError(f"{final}: {error}") from error
    return Checkpoint(final)


def checkpoint_path(root: Path, update: int) -> Path:
    return root / f"update-{update:08d}"


def write_all_but_tensors(folder: Path, contents: Contents) -> None:
    write_record(folder / _STATE, contents.state, SavedState)
    write_record(folder / _CONFIG, contents.config)
    contents.vocabulary.save(folder / VOCABULARY_FILE)
    if contents.codes is not None:
        contents.codes.save(folder / CODES_FILE)
    if not contents.splitting.is_plain:
        write_record(folder / SPLITTING_FILE, contents.splitting)
