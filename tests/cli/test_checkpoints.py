"""`zipflm consolidate` as a user meets it."""

import shutil

import pytest
from sharded_checkpoints import in_shards
from training_runs import run as train_run
from typer.testing import CliRunner

import zipflm.cli
from zipflm.runs.folder import RunFolder


@pytest.fixture
def run(word_data, tmp_path):
    train_run(word_data, tmp_path / "run", "training.max_updates=2")
    in_shards(RunFolder(tmp_path / "run").choose("newest"), 2)
    return tmp_path / "run"


def command(*arguments):
    return CliRunner().invoke(zipflm.cli.app, ["consolidate", *map(str, arguments)])


def test_it_says_what_it_did_and_that_it_had_been_done(run):
    said = command(run).output
    assert "update-00000002: the shards of 2 processes are one file" in said
    assert "update-00000002: in one file already" in command(run, "--checkpoint", "2").output


def test_what_it_cannot_do_is_said_with_a_remedy(run, tmp_path):
    shutil.copytree(run, tmp_path / "lost")
    name = "shard-00002-model-00001-of-00002.safetensors"
    (RunFolder(tmp_path / "lost").choose("newest").path / name).unlink()
    for arguments, message in (
        ((tmp_path / "none",), "no run with a checkpoint"),
        ((run, "--checkpoint", "3"), "--checkpoint 3: .* has those of the updates 2"),
        ((tmp_path / "lost",), f"{name}: missing; .* copy it back"),
    ):
        result = command(*arguments)
        assert isinstance(result.exception, ValueError)
        with pytest.raises(ValueError, match=message):
            raise result.exception
