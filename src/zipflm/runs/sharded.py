"""Read the tensors of checkpoints, and write the sharded checkpoints of several processes.

A process reads only the parts of tensors that it needs.
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
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from zipflm.messages import unquoted
from zipflm.runs.checkpoint import Contents, checkpoint_path, write_all_but_tensors
from zipflm.storage import file_hash, finish_folder, refuse_existing, report_full_disk, seal


class StoredTensors:
    """The tensors in some files of a checkpoint, sharded or not. Only headers are read until
    `load_into` or `read`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers. Raises ValueError if a file is damaged."""
        self._folder = paths[0].parent
        self._reader = HuggingFaceStorageReader(str(self._folder))
        # torch would read all files of the folder, but scoring must not need the optimizer state.
        self._reader.fs = _Files(paths)
        try:
            metadata = self._reader.read_metadata().state_dict_metadata
        except SafetensorError as error:
            raise ValueError(f"{self._folder}: damaged: {unquoted(str(error))}") from None
        self._tensors = {
            name: item for name, item in metadata.items() if isinstance(item, TensorStorageMetadata)
        }
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(item.size) for name, item in self._tensors.items()
        }

    def load_into(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite these tensors with the stored ones of the same names.

        The tensors can be sharded and on any device. This is not a collective operation. Raises
        ValueError if a tensor is missing or cannot be read.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            try:
                load(tensors, storage_reader=self._reader, no_dist=True)
            except CheckpointException as error:  # a BaseException
                raise ValueError(f"{self._folder}: cannot be read: {error}") from None

    def read(self) -> dict[str, Tensor]:
        """Return all tensors, unsharded and on the CPU."""
        tensors = {
            name: torch.empty(item.size, dtype=item.properties.dtype)
            for name, item in self._tensors.items()
        }
        self.load_into(tensors)
        return tensors


class _Files(FileSystem):
    """A file system that lists only these files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._paths = [str(path) for path in paths]

    def ls(self, path: object) -> list[str]:
        return self._paths


_REMEDY = "nothing was saved; free some space"


class ShardWriter(HuggingFaceStorageWriter):
    """Writes one checkpoint. torch calls its methods in every process."""

    def __init__(self, root: Path, contents: Contents) -> None:
        self._contents, self._final = contents, checkpoint_path(root, contents.state.update)
        # All processes use this name. If they are killed, resuming the run removes the folder.
        self.unfinished: Path = self._final.with_name(f".{self._final.name}.unfinished-shards")
        # Index of the file of each process: 1 for weights, 2 for optimizer state.
        files = dict.fromkeys(contents.weights, 1) | dict.fromkeys(contents.optimizer, 2)
        super().__init__(
            path=str(self.unfinished), fqn_to_index_mapping=files, save_distributed=True
        )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the shards of this process. The result lists the checksum of each file."""
        with report_full_disk(self._final, _REMEDY):
            written = super().write_data(plan, planner).wait()
        names = sorted({result.storage_data.relative_path for result in written})
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [WriteResult(MetadataIndex(n), 0, file_hash(self.unfinished / n)) for n in names]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Add the other files and rename the folder. torch calls this in the first process only."""
        sums = {item.index.fqn: item.storage_data for result in results for item in result}
        with report_full_disk(self._final, _REMEDY):
            refuse_existing(self._final)
            write_all_but_tensors(self.unfinished, self._contents)
            seal(self.unfinished, known=sums)
            finish_folder(self.unfinished, self._final)
