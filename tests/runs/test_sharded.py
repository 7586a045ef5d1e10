"""Files that several processes write for one checkpoint, and how the work is shared out."""

import doctest

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from zipflm.runs import sharded
from zipflm.runs.folder import RunFolder
from zipflm.runs.sharded import ShardWriter, spread


@pytest.fixture
def writer(trained, tmp_path):
    contents = RunFolder(trained).choose("newest").read()
    return ShardWriter(tmp_path / "checkpoints", contents, contents.weights, contents.optimizer)


def results(writer, *names):
    writer.unfinished.mkdir(parents=True, exist_ok=True)
    return [[WriteResult(MetadataIndex(name), 1, "0" * 64)] for name in names]


def test_a_file_that_another_machine_keeps_for_itself_is_named(writer):
    """The machines do not see the same folder."""
    with pytest.raises(OSError, match="shard-1: another process wrote it.*all machines share"):
        writer.finish(Metadata({}), results(writer, "shard-1"))
    writer.clear()
    assert not list(writer.unfinished.parent.iterdir())


def test_a_checkpoint_is_not_written_over_another(writer):
    """The first process finishes only what is not there."""
    told = results(writer)
    final = writer.unfinished.with_name("update-00000006")
    final.mkdir()
    (final / "state.json").write_text("")
    with pytest.raises(FileExistsError, match="update-00000006 exists already"):
        writer.finish(Metadata({}), told)
    assert (final / "state.json").read_text() == ""


def test_what_killed_processes_left_does_not_get_into_the_checkpoint(writer):
    """Three saved the same update and were killed, and two go on, on a disk without locks."""
    names = [f"shard-0000{rank}-model-00001-of-00002.safetensors" for rank in (1, 2, 3)]
    told = results(writer, *names[:2])
    for name in names:
        (writer.unfinished / name).write_bytes(b"")
    writer.finish(Metadata({}), told)
    (checkpoint,) = RunFolder(writer.unfinished.parent.parent).checkpoints()
    assert checkpoint.weights_files == names[:2]
    assert not (checkpoint.path / names[2]).exists()


def test_tensors_are_shared_out_evenly_and_alike_everywhere():
    assert doctest.testmod(sharded).failed == 0
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 1000, (50,), generator=generator).tolist()
    tensors = {str(number): torch.empty(size) for number, size in enumerate(sizes)}
    owners = spread(tensors, 7)
    assert spread(dict(reversed(tensors.items())), 7) == owners
    loads = [sum(tensors[n].numel() for n in owners if owners[n] == rank) for rank in range(7)]
    assert sum(loads) == sum(sizes) and max(loads) - min(loads) < 200
