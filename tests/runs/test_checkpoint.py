"""A checkpoint gives back what was saved, or names what is wrong with it."""

import json
import os
import shutil
import stat
from dataclasses import replace

import pytest
import torch

from zipflm.config import PLAIN, Splitting
from zipflm.runs.checkpoint import Checkpoint, Contents, save
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import ImportedState


@pytest.fixture
def newest(trained, tmp_path):
    return RunFolder(shutil.copytree(trained, tmp_path / "copy")).choose("newest")


def test_what_is_read_is_what_was_saved(newest, tmp_path):
    contents = newest.read()
    again = save(tmp_path / "again", contents).read()
    assert again.weights.keys() == contents.weights.keys() and len(again.optimizer) > 0
    for ours, theirs in ((again.weights, contents.weights), (again.optimizer, contents.optimizer)):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (again.state, again.config) == (contents.state, contents.config)
    assert again.vocabulary == contents.vocabulary
    assert again.vocabulary.counts.tolist() == contents.vocabulary.counts.tolist()


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o027, 0o077])
def test_the_umask_decides_who_can_read_weights(newest, tmp_path, mask):
    before = os.umask(mask)
    try:
        saved = save(tmp_path / "again", newest.read())
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in saved.path.iterdir()} == {0o666 & ~mask}


def test_codes_of_a_sub_word_model_are_kept(newest, bpe_data, tmp_path):
    contents = newest.read()
    state = ImportedState(update=3, imported_from="elsewhere")
    vocabulary, codes = bpe_data.vocabulary, bpe_data.codes
    with_codes = Contents({}, {}, state, contents.config, vocabulary, codes, PLAIN)
    saved = save(tmp_path, with_codes)
    assert saved.codes().merges == bpe_data.codes.merges
    assert saved.state() == state and saved.update == 3
    assert newest.codes() is None


@pytest.mark.parametrize("splitting", [Splitting("wikitext", True), Splitting(lowercase=True)])
def test_the_splitting_of_raw_text_is_kept_where_it_is_not_the_plain_one(
    newest, splitting, tmp_path
):
    assert newest.splitting() == PLAIN and not (newest.path / "splitting.json").exists()
    saved = save(tmp_path, replace(newest.read(), splitting=splitting))
    assert saved.splitting() == saved.read().splitting == splitting
    (saved.path / "splitting.json").unlink()
    with pytest.raises(ValueError, match=r"splitting.json: missing"):
        Checkpoint(saved.path).read()


NAMES = ("weights.safetensors", "optimizer.safetensors", "state.json", "config.json")


@pytest.mark.parametrize("name", [*NAMES, "vocabulary.txt"])
@pytest.mark.parametrize("change", ["a bit", "cut", "gone"])
def test_every_change_of_a_file_is_noticed_and_named(newest, name, change):
    path = newest.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if change == "cut" else content)
    with pytest.raises(ValueError, match=f"{name}: (damaged|missing)"):
        newest.read()


def test_a_file_that_no_checksum_covers_makes_a_checkpoint_not_whole(newest):
    path = newest.path / "checksums.json"
    sums = json.loads(path.read_text())
    del sums["vocabulary.txt"]
    path.write_text(json.dumps(sums))
    with pytest.raises(ValueError, match="says nothing of vocabulary.txt"):
        Checkpoint(newest.path).verify()


def test_the_optimizer_may_be_left_unread(newest):
    (newest.path / "optimizer.safetensors").unlink()
    newest.verify(optimizer=False)
    with pytest.raises(ValueError, match="optimizer.safetensors: missing"):
        newest.verify()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a JSON object"),
        ("3", "not a JSON object"),
        ("\xff", "not JSON"),
        ('{"kind": "TrainingState", "update": 2}', "place: missing"),
        ('{"kind": "State"}', "kind='State': choose from TrainingState, ImportedState"),
        ('{"kind": "ImportedState", "update": "2", "imported_from": "x"}', "update='2'"),
        ('{"kind": "ImportedState", "update": 2, "imported_from": "x", "y": 1}', "unknown key y"),
        ('{"update": 2, "place": {}}', "of another release: kind=None"),
    ],
)
def test_a_state_that_is_none_is_refused_with_file_and_field(newest, content, message):
    (newest.path / "state.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="state.json: ") as error:
        newest.state()
    assert message in str(error.value)


def test_a_failed_save_leaves_nothing_behind(newest, tmp_path, monkeypatch):
    def fail(self, path):
        raise OSError(28, "No space left on device")

    contents = newest.read()
    monkeypatch.setattr(type(contents.vocabulary), "save", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "full", contents)
    assert not (tmp_path / "full").exists()


def test_one_set_aside_passes_for_a_checkpoint_no_longer(newest):
    run = RunFolder(newest.path.parent.parent)
    assert newest.set_aside().is_dir()
    assert [checkpoint.update for checkpoint in run.checkpoints()] == [4, 2]
