"""A run folder knows its checkpoints and writes what identifies the run."""

import json
import shutil
from dataclasses import replace

import pytest

from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder, locate, parse_choice


@pytest.fixture
def copy(trained, tmp_path):
    return RunFolder(shutil.copytree(trained, tmp_path / "copy"))


def test_checkpoints_come_newest_first_and_others_are_not_seen(copy):
    for name in (".update-00000009", "update-9", "update-00000009x", ".damaged-update-00000008"):
        (copy.checkpoints_path / name).mkdir()
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [6, 4, 2]


def test_the_best_is_the_one_with_the_lowest_validation_loss(copy):
    losses = {c.update: c.state().valid.nats_per_word for c in copy.checkpoints()}
    assert copy.choose("best").update == min(losses, key=losses.get)
    assert (copy.choose("newest").update, copy.choose(4).update) == (6, 4)


def test_a_damaged_checkpoint_is_not_the_best(copy):
    first = copy.best()
    path = first.path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    second = copy.best()
    assert second.update != first.update
    (second.path / "state.json").write_text("{}")
    assert copy.best().update not in (first.update, second.update)


def test_a_path_means_a_run_or_one_checkpoint(copy):
    run, checkpoint = locate(copy.path, None)
    assert (run.path, checkpoint.update) == (copy.path, 6)
    run, checkpoint = locate(copy.choose(2).path, None)
    assert (run.path, checkpoint.update) == (copy.path, 2)


@pytest.mark.parametrize(
    ("text", "choice"), [(None, None), ("newest", "newest"), ("best", "best"), ("0012", 12)]
)
def test_a_choice_is_a_word_or_a_number(text, choice):
    assert parse_choice(text) == choice


@pytest.mark.parametrize("text", ["", "-1", "1.5", "last"])
def test_a_choice_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="choose newest, best or a number"):
        parse_choice(text)


def test_old_checkpoints_are_removed_but_for_the_best_and_the_newest(copy):
    contents = copy.choose(6).read()
    copy.choose(6).remove()
    best = copy.best().update
    copy.save(replace(contents, state=replace(contents.state, valid=None)))
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [6, 4, 2]
    copy.prune(keep=0)
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [6, 4, 2]
    copy.prune(keep=1)
    assert {checkpoint.update for checkpoint in copy.checkpoints()} == {6, best}


def test_a_run_says_what_it_was_made_with(copy, word_data):
    versions = copy.versions()
    assert versions.text == word_data.split("train").sha256
    assert versions.vocabulary == word_data.vocabulary.hash
    assert versions.latest is versions
    copy.open(copy.config(), word_data, update=4)
    assert [resumed.update for resumed in copy.versions().resumed] == [4]
    assert copy.versions().latest.update == 4
    assert max(line.update for line in copy.log()) == 4


@pytest.mark.parametrize("name", ["config.json", "versions.json"])
@pytest.mark.parametrize("content", [b"[]", b"{", b'{"x": 1}'])
def test_a_damaged_file_is_refused_by_name(copy, name, content):
    (copy.path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: damaged or of another release"):
        copy.config() if name == "config.json" else copy.versions()


def test_unknown_fields_of_a_config_are_named(copy):
    values = json.loads((copy.path / "config.json").read_text())
    values["decoder"]["num_layer"] = 3
    (copy.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="unknown key decoder.num_layer: did you mean"):
        copy.config()


def test_a_checkpoint_that_cannot_be_read_from_its_disk_is_passed_over(copy, monkeypatch):
    check, said = Checkpoint.check, []

    def fail_once(self, share):
        if self.update == 6:
            raise OSError(5, "Input/output error")
        return check(self, share)

    monkeypatch.setattr(Checkpoint, "check", fail_once)
    assert copy.newest_good(said.append).update == 4
    assert "Input/output error" in said[0]


def test_a_checkpoint_under_another_name_is_refused(copy):
    moved = copy.checkpoints_path / "update-00000099"
    copy.choose(6).path.rename(moved)
    with pytest.raises(ValueError, match="was saved after update 6, as its state.json says"):
        Checkpoint(moved).read()


def test_a_checkpoint_that_was_copied_out_of_its_run_stands_alone(copy, tmp_path):
    alone = shutil.copytree(copy.choose(6).path, tmp_path / "mine")
    run, checkpoint = locate(alone, None)
    assert run.path == checkpoint.path == alone and run.log() == []
