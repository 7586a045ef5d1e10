"""Training uses no token that is not what `prepare` wrote."""

import os
import shutil
import subprocess
import time

import pytest
from training_runs import environment, reports, run, train_command

from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder

SHORT = ["training.max_updates=2"]
LONG = ["training.max_updates=100000", "training.checkpoint_every=20", "training.report_every=10"]


@pytest.fixture
def data(word_data, tmp_path):
    """A copy that may be damaged."""
    return DataFolder.open(shutil.copytree(word_data.path, tmp_path / "data"))


def flip(path, position=200):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_one_flipped_bit_is_refused_before_anything_is_written(data, tmp_path, split):
    flip(data.path / f"{split}.tokens")
    with pytest.raises(ValueError, match=f"{split}.tokens: damaged.*prepare the data again"):
        run(data, tmp_path / "run", *SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_file_cut_while_it_is_trained_on_is_named_and_checkpoints_are_intact(data, tmp_path):
    """The system would end the process where it reads behind the file's end, without a word."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        train_command(data, out, *LONG),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        end = time.monotonic() + 100
        while not RunFolder(out).checkpoints() or not reports(out):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        os.truncate(data.path / "train.tokens", 0)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 2, said
    assert said.startswith(f"zipflm: {data.path}/train.tokens: changed while in use, from ")
    assert said.count("\n") == 1
    found = RunFolder(out).checkpoints()
    assert found
    for checkpoint in found:
        checkpoint.verify()
    assert not list(out.rglob(".*"))
