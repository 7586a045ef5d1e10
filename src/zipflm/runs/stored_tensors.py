"""Tensors in safetensors files, whole or in the shards that several processes saved.

`torch.distributed.checkpoint` reads both forms; of a sharded tensor it reads only the part that
this process holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from zipflm.quoting import unquoted


class StoredTensors:
    """All tensors of some files of a checkpoint. Only headers are read before `load_into`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """ValueError if a file is damaged."""
        self._folder = paths[0].parent
        self._reader = HuggingFaceStorageReader(str(self._folder))
        # Torch would read all files of the folder; scoring must not need the optimizer's state.
        self._reader.fs = _Files(paths)
        try:
            found = self._reader.read_metadata().state_dict_metadata
        except SafetensorError as error:
            raise ValueError(f"{self._folder}: damaged: {unquoted(str(error))}") from None
        self._tensors = {
            name: each for name, each in found.items() if isinstance(each, TensorStorageMetadata)
        }
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(each.size) for name, each in self._tensors.items()
        }

    def load_into(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite these tensors, which may be sharded and on any device, with those stored under
        the same names. Processes need not call it together."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            try:
                load(tensors, storage_reader=self._reader, no_dist=True)
            except CheckpointException as error:  # not an Exception
                raise ValueError(f"{self._folder}: cannot be read: {error}") from None

    def read(self) -> dict[str, Tensor]:
        """All tensors, whole and on the CPU."""
        tensors = {
            name: torch.empty(each.size, dtype=each.properties.dtype)
            for name, each in self._tensors.items()
        }
        self.load_into(tensors)
        return tensors


class _Files(FileSystem):
    """A folder with these files only."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._paths = [str(path) for path in paths]

    def ls(self, path: object) -> list[str]:
        return self._paths
