"""Tensors in one file or in shards: any part reads as it would from the whole."""

import json

import pytest
import torch
from safetensors.torch import save_file

from zipflm.runs.stored_tensors import StoredTensors

TABLE = torch.arange(20.0).view(5, 4)


def shard(path, start, stop, **others):
    """Some rows of the table and, whole, other tensors, as torch saves them."""
    offsets = {"table": {"saved_offsets": [start, 0]}}
    offsets |= {name: {"saved_offsets": [0] * tensor.ndim} for name, tensor in others.items()}
    rows = TABLE[start:stop].contiguous()
    save_file({"table": rows} | others, path, metadata={"DCP_SHARDING_INFO": json.dumps(offsets)})
    return path


@pytest.fixture
def paths(tmp_path):
    """Of four processes, the last of which has no row."""
    edges = [0, 2, 4, 5, 5]
    others = [{"step": torch.tensor(3.0)}, {}, {"counts": torch.tensor([4, 5])}, {}]
    return [
        shard(tmp_path / f"{i}.safetensors", edges[i], edges[i + 1], **others[i]) for i in range(4)
    ]


def test_every_part_is_what_it_is_of_the_whole(paths, tmp_path):
    save_file({"table": TABLE}, tmp_path / "one.safetensors")
    for stored in (StoredTensors(paths), StoredTensors([tmp_path / "one.safetensors"])):
        assert stored.shape("table") == (5, 4)
        assert torch.equal(stored.read("table"), TABLE)
        for first in range(6):
            for last in range(first, 6):
                part = (slice(first, last), slice(1, 3))
                assert torch.equal(stored.read("table", part), TABLE[part])


def test_small_tensors_are_where_one_process_put_them(paths):
    stored = StoredTensors(paths)
    assert sorted(stored.names) == ["counts", "step", "table"]
    assert torch.equal(stored.read("step"), torch.tensor(3.0))
    assert torch.equal(stored.read("counts", (slice(1, 2),)), torch.tensor([5]))


@pytest.mark.parametrize("holders", [1, 2])
def test_a_tensor_without_a_number_is_one_all_the_same(tmp_path, holders):
    """As the classes of a softmax without tails: saved by one process, or by each a part."""
    others = [{"clusters": torch.empty(0, 4)}, {"clusters": torch.empty(0, 4)}][:holders] + [{}]
    paths = [
        shard(tmp_path / f"{i}.safetensors", *[(0, 2), (2, 5)][i], **others[i]) for i in range(2)
    ]
    stored = StoredTensors(paths)
    assert stored.shape("clusters") == stored.read("clusters").shape == (0, 4)
    part = (slice(0, 0), slice(0, 4))
    assert stored.read("clusters", part).shape == (0, 4)


def test_what_was_read_does_not_depend_on_the_file(paths):
    table = StoredTensors(paths).read("table")
    for path in paths:
        path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(table, TABLE)


def test_a_missing_shard_is_noticed(paths):
    with pytest.raises(ValueError, match="0.safetensors: holds, .* 12 of the 20 numbers of table;"):
        StoredTensors([paths[0], paths[2], paths[3]])
    paths[1].unlink()
    with pytest.raises(ValueError, match="1.safetensors: missing from this checkpoint"):
        StoredTensors(paths)


@pytest.mark.parametrize(
    "header",
    ["{", "[]", '{"table": 3}', '{"table": {"saved_offsets": ["x", 0]}}']
    + ['{"table": {"saved_offsets": [0]}}', '{"table": {}}']
    + ['{"table": {"saved_offsets": [Infinity, 0]}}', "[" * 100_000],
    ids=range(8),
)
def test_a_header_that_makes_no_sense_is_refused_with_the_file(tmp_path, header):
    path = tmp_path / "a.safetensors"
    save_file({"table": TABLE}, path, metadata={"DCP_SHARDING_INFO": header})
    with pytest.raises(ValueError, match="a.safetensors: ") as error:
        StoredTensors([path]).read("table")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tensor", "start"),
    [
        (torch.ones(2, 4, dtype=torch.int32), [2, 0]),
        (torch.ones(8), [2]),
        (TABLE[2:4].contiguous(), [-2, 0]),
        (TABLE[2:4].contiguous(), [2, 1]),
    ],
    ids=["another type", "fewer dimensions", "before the start", "beside the others"],
)
def test_shards_that_do_not_fit_each_other_are_refused_by_name(paths, tensor, start):
    header = {"DCP_SHARDING_INFO": json.dumps({"table": {"saved_offsets": start}})}
    save_file({"table": tensor}, paths[1], metadata=header)
    with pytest.raises(ValueError, match="[01].safetensors: .* table"):
        StoredTensors(paths)


def test_a_file_that_is_cut_short_is_named(paths):
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    with pytest.raises(ValueError, match="1.safetensors: cut short or damaged"):
        StoredTensors(paths)
