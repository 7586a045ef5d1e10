"""A checkpoint that several processes save together, with `torch.distributed.checkpoint`.

Each process writes what it holds: its shards, and some of the tensors that all of them have. Of
torch's formats this is the one for Hugging Face's tools: safetensors files, each with the place of
its shards in the header (`stored_tensors` reads them). The default format keeps those places in a
pickle, and whoever reads a pickle runs it; here nothing but JSON and numbers is read.

What torch leaves out is added: checksums, which each process computes of its own files, and that a
checkpoint is whole or absent. The first process writes what is not a tensor, seals and renames the
folder, and does so when all others have written theirs, which torch sees to.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from zipflm.checksums import seal
from zipflm.files import file_hash, naming_full_disk
from zipflm.folders import give_its_name, refuse_existing
from zipflm.runs.checkpoint import Contents, checkpoint_path, write_all_but_tensors

_REMEDY = "nothing was kept; free some space"


class ShardWriter(HuggingFaceStorageWriter):
    """What torch calls, in every process, to save one checkpoint."""

    def __init__(
        self, root: Path, contents: Contents, weights: Iterable[str], optimizer: Iterable[str]
    ) -> None:
        """A checkpoint in the folder `root`; names of all tensors, whoever writes them. Of
        `contents` everything else is written: its own tensors are not looked at."""
        self._contents, self._final = contents, checkpoint_path(root, contents.state.update)
        # A name that everybody knows, and that is cleared away if we are killed.
        self.unfinished: Path = self._final.with_name(f".{self._final.name}.unfinished-shards")
        # Into the first or the second file of each process: whoever evaluates needs one of them.
        files = dict.fromkeys(weights, 1) | dict.fromkeys(optimizer, 2)
        super().__init__(
            path=str(self.unfinished), fqn_to_index_mapping=files, save_distributed=True
        )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the shards of this process; what comes of it are the checksums of its files."""
        with naming_full_disk(self._final, _REMEDY):
            written = super().write_data(plan, planner).wait()
        names = sorted({result.storage_data.relative_path for result in written})
        results = [
            WriteResult(
                index=MetadataIndex(name),
                size_in_bytes=(self.unfinished / name).stat().st_size,
                storage_data=file_hash(self.unfinished / name),
            )
            for name in names
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """In the first process, when all have written: everything else, and the final name."""
        sums = {each.index.fqn: each.storage_data for result in results for each in result}
        for name in sums:
            if not (self.unfinished / name).is_file():
                raise OSError(
                    f"{self.unfinished / name}: another process wrote it, but it is not there; "
                    "--out must be a folder that all machines share"
                )
        with naming_full_disk(self._final, _REMEDY):
            refuse_existing(self._final)
            self._clear_away_all_but(sums)
            write_all_but_tensors(self.unfinished, self._contents)
            seal(self.unfinished, known=sums)
            give_its_name(self.unfinished, self._final)

    def _clear_away_all_but(self, names: Container[str]) -> None:
        """Remove what others left in the folder: of more processes than we are, killed while they
        saved the same update, where nobody may clear up because there are no locks."""
        for path in list(self.unfinished.iterdir()):
            if path.name not in names:
                path.unlink()

    def clear(self) -> None:
        """Remove what there is of a checkpoint that could not be saved."""
        shutil.rmtree(self.unfinished, ignore_errors=True)


def spread(tensors: Mapping[str, Tensor], processes: int) -> dict[str, int]:
    """Which process writes which of the tensors that all of them have, so that each has about as
    much to write: the largest first, each to whoever has least.

    >>> import torch
    >>> sizes = {"a": 3, "b": 5, "c": 2, "d": 1}
    >>> spread({name: torch.empty(size) for name, size in sizes.items()}, 2)
    {'b': 0, 'a': 1, 'c': 1, 'd': 0}
    """
    loads = [0] * processes
    owners = {}
    for name, tensor in sorted(tensors.items(), key=lambda pair: (-pair[1].nbytes, pair[0])):
        owners[name] = min(range(processes), key=loads.__getitem__)
        loads[owners[name]] += tensor.nbytes
    return owners
