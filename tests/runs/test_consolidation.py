"""Shards become one file, in place: a whole checkpoint at every moment, the same as before."""

import shutil

import pytest
import torch
from sharded_checkpoints import in_shards
from training_runs import assert_same

from zipflm.checksums import seal
from zipflm.locks import InUse
from zipflm.runs import consolidation
from zipflm.runs.consolidation import consolidate
from zipflm.runs.folder import RunFolder
from zipflm.runs.loaded import load_run


@pytest.fixture
def run(trained, tmp_path):
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    in_shards(folder.choose("newest"))
    return folder


@pytest.fixture
def files(trained):
    """Of the checkpoint that one process saved."""
    path = RunFolder(trained).choose("newest").path
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_the_result_is_to_the_bit_what_one_process_saves(run, files):
    before = run.choose("newest").read()
    done = consolidate(run.path)
    assert (done.checkpoint.update, done.num_shards) == (6, 3)
    assert {p.name: p.read_bytes() for p in done.checkpoint.path.iterdir()} == files
    after = done.checkpoint.read()
    assert_same(after.weights, before.weights)
    assert_same(after.optimizer, before.optimizer)
    # And once more, there is nothing to do.
    assert consolidate(run.path).num_shards == 0
    assert {p.name: p.read_bytes() for p in done.checkpoint.path.iterdir()} == files


def test_processes_count_that_had_no_weights_to_save(run):
    """As of two with whole models: one has all weights, the other all of the optimizer's state."""
    sharded = run.choose("newest")
    consolidate(run.path)
    names = [f"shard-0000{n}-model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for old, new in zip(("weights", "optimizer"), names, strict=True):
        (sharded.path / f"{old}.safetensors").rename(sharded.path / new)
    seal(sharded.path)
    assert consolidate(run.path).num_shards == 2


def test_whoever_reads_shards_or_one_file_gets_the_same_model(run, trained):
    words = torch.tensor([[2, 9, 11, 4]])
    ours, theirs = (load_run(path).model.nll(words, words) for path in (run.path, trained))
    assert torch.equal(ours, theirs)


def test_one_checkpoint_may_be_chosen_or_given_by_its_own_folder(run, tmp_path):
    in_shards(run.choose(2))
    assert consolidate(run.path, 2).checkpoint.update == 2
    assert run.choose(6).is_sharded
    alone = shutil.copytree(run.choose(6).path, tmp_path / "alone")
    assert consolidate(alone).num_shards == 3 and run.choose(6).is_sharded


@pytest.mark.parametrize("at", ["weights", "optimizer", "checksums", "shards"])
def test_interrupted_anywhere_it_is_whole_and_goes_on(run, files, monkeypatch, at):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    true_write, writes = consolidation._write, iter(["weights", "optimizer"])

    def write(stored, path):
        true_write(stored, path)
        if next(writes) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(consolidation, "_write", write)
    if at == "checksums":
        monkeypatch.setattr(consolidation, "seal", stop)
    if at == "shards":
        monkeypatch.setattr(consolidation, "_remove_shards", stop)
    before = run.choose("newest").read()
    with pytest.raises(KeyboardInterrupt):
        consolidate(run.path)
    monkeypatch.undo()
    between = run.choose("newest")
    between.verify()
    assert between.is_sharded == (at != "shards")
    assert_same(between.read().weights, before.weights)
    consolidate(run.path)
    assert {p.name: p.read_bytes() for p in between.path.iterdir()} == files


def test_a_damaged_shard_is_named_and_nothing_is_changed(run):
    path = run.choose("newest").path / "shard-00002-model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    names = sorted(each.name for each in path.parent.iterdir())
    with pytest.raises(ValueError, match="shard-00002-model-00001-of-00002.safetensors: damaged"):
        consolidate(run.path)
    assert sorted(each.name for each in path.parent.iterdir()) == names


def test_a_full_disk_is_named_and_leaves_the_shards(run, monkeypatch):
    def fail(tensors, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(consolidation, "save_file", fail)
    with pytest.raises(OSError, match="No space left.*the shards are as they were"):
        consolidate(run.path)
    monkeypatch.undo()
    run.choose("newest").check()


def test_a_run_in_progress_is_left_alone(run):
    with run.lock(), pytest.raises(InUse):
        consolidate(run.path)
