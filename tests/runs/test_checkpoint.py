import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from training_runs import read_contents

from zipflm.config import PLAIN, Splitting
from zipflm.runs.checkpoint import Checkpoint, save


@pytest.fixture
def newest(copy):
    return copy.choose("newest")


def test_save_and_read(newest, tmp_path):
    contents = read_contents(newest)
    again = read_contents(save(tmp_path / "again", contents))
    assert again.weights.keys() == contents.weights.keys() and len(again.optimizer) > 0
    for ours, theirs in ((again.weights, contents.weights), (again.optimizer, contents.optimizer)):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (again.state, again.config) == (contents.state, contents.config)
    assert again.vocabulary == contents.vocabulary
    assert again.vocabulary.counts.tolist() == contents.vocabulary.counts.tolist()


def test_files_respect_the_umask(newest, tmp_path, mask=0o027):
    before = os.umask(mask)
    try:
        saved = save(tmp_path / "again", read_contents(newest))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(p.stat().st_mode) for p in saved.path.iterdir()} == {0o666 & ~mask}


def test_saves_codes_and_splitting(newest, bpe_data, tmp_path):
    splitting = Splitting(lowercase=True)
    assert newest.splitting() == PLAIN and not (newest.path / "splitting.json").exists()
    contents = replace(read_contents(newest), splitting=splitting, codes=bpe_data.codes)
    saved = save(tmp_path, contents)
    assert saved.codes().merges == bpe_data.codes.merges and newest.codes() is None
    assert saved.splitting() == splitting
    (saved.path / "splitting.json").unlink()
    with pytest.raises(ValueError, match=r"splitting.json: missing"):
        Checkpoint(saved.path).verify()


NAMES = ("weights.safetensors", "optimizer.safetensors", "state.json", "config.json")


@pytest.mark.parametrize("name", [*NAMES, "vocabulary.txt"])
@pytest.mark.parametrize("change", ["flip", "truncate", "remove"])
def test_rejects_damaged_files(newest, name, change):
    path = newest.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if change == "truncate" else content)
    with pytest.raises(ValueError, match=f"{name}: (damaged|missing)"):
        read_contents(newest)


def test_rejects_files_without_a_checksum(newest):
    path = newest.path / "checksums.json"
    sums = json.loads(path.read_text())
    del sums["vocabulary.txt"]
    path.write_text(json.dumps(sums))
    with pytest.raises(ValueError, match="has no entry for vocabulary.txt"):
        Checkpoint(newest.path).verify()


def test_can_skip_the_optimizer_state(newest):
    (newest.path / "optimizer.safetensors").unlink()
    newest.verify(optimizer=False)
    with pytest.raises(ValueError, match="optimizer.safetensors: missing"):
        newest.verify()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a JSON object"),
        ('{"kind": "TrainingState", "update": 2}', "place: missing"),
        ('{"kind": "State"}', "expected tags: 'TrainingState', 'ImportedState'"),
        (
            '{"update": 2, "place": {}}',
            "from another release: Unable to extract tag using discriminator 'kind'",
        ),
    ],
)
def test_rejects_bad_states(newest, content, message):
    (newest.path / "state.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="state.json: ") as error:
        newest.state()
    assert message in str(error.value)


def test_a_failed_save_leaves_no_files(newest, tmp_path, monkeypatch):
    def fail(self, path):
        raise OSError(28, "No space left on device")

    contents = read_contents(newest)
    monkeypatch.setattr(type(contents.vocabulary), "save", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "full", contents)
    assert not (tmp_path / "full").exists()
