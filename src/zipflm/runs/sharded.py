"""A checkpoint that several processes save together, with `torch.distributed.checkpoint`.

The files are torch's Hugging Face format: safetensors, with the place of each shard in the header.
The default format needs a pickle. Torch does not compute checksums and does not make a checkpoint
whole or absent; that is added here.
"""

from __future__ import annotations

from pathlib import Path

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
    """Saves one checkpoint; torch calls it in every process."""

    def __init__(self, root: Path, contents: Contents) -> None:
        """A checkpoint in the folder `root`."""
        self._contents, self._final = contents, checkpoint_path(root, contents.state.update)
        # A name that all processes know, and that is removed if we are killed.
        self.unfinished: Path = self._final.with_name(f".{self._final.name}.unfinished-shards")
        # The first or the second file of each process: scoring needs only the first.
        files = dict.fromkeys(contents.weights, 1) | dict.fromkeys(contents.optimizer, 2)
        super().__init__(
            path=str(self.unfinished), fqn_to_index_mapping=files, save_distributed=True
        )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the shards of this process; the results are the checksums of its files."""
        with naming_full_disk(self._final, _REMEDY):
            written = super().write_data(plan, planner).wait()
        names = sorted({result.storage_data.relative_path for result in written})
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [WriteResult(MetadataIndex(n), 0, file_hash(self.unfinished / n)) for n in names]
        )
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """In the first process, once all have written: the other files, and the final name."""
        sums = {each.index.fqn: each.storage_data for result in results for each in result}
        for name in sums:
            if not (self.unfinished / name).is_file():
                raise OSError(
                    f"{self.unfinished / name}: another process wrote it, but it is not there; "
                    "--out must be a folder that all machines share"
                )
        with naming_full_disk(self._final, _REMEDY):
            refuse_existing(self._final)
            for path in list(self.unfinished.iterdir()):
                if path.name not in sums:  # of more processes, killed where there are no locks
                    path.unlink()
            write_all_but_tensors(self.unfinished, self._contents)
            seal(self.unfinished, known=sums)
            give_its_name(self.unfinished, self._final)
