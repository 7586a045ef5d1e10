import pytest
import torch
from safetensors.torch import save_file
from sharded_checkpoints import in_shards
from training_runs import read_contents

from zipflm.runs.folder import RunFolder
from zipflm.runs.sharded import StoredTensors

TENSORS = {
    "table": torch.arange(20.0).view(5, 4),
    "step": torch.tensor(3.0),
    "clusters": torch.empty(0, 4),  # a softmax without tails
}


def test_reads_tensors_into_new_memory(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(TENSORS, path)
    stored = StoredTensors([path])
    assert stored.shapes == {"table": (5, 4), "step": (), "clusters": (0, 4)}
    read = stored.read()
    path.write_bytes(b"\0" * path.stat().st_size)
    assert all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)


def test_shards_equal_a_single_file(trained, copy):
    whole, sharded = RunFolder(trained).choose("newest"), in_shards(copy.choose("newest"))
    assert sharded.is_sharded and not whole.is_sharded
    ours, theirs = read_contents(sharded), read_contents(whole)
    for mine, other in ((ours.weights, theirs.weights), (ours.optimizer, theirs.optimizer)):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in other)


def test_reads_only_the_given_files(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"damaged")
    assert StoredTensors([tmp_path / "a.safetensors"]).read().keys() == TENSORS.keys()
    with pytest.raises(ValueError, match="damaged"):
        StoredTensors([tmp_path / "b.safetensors"])
