import os
import shutil
import subprocess

import pytest
from training_runs import environment, reports, run, train_command, wait_for

from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder

SHORT = ["training.max_updates=2"]
LONG = ["training.max_updates=100000", "training.checkpoint_every=20", "training.report_every=10"]


@pytest.fixture
def data(word_data, tmp_path):
    """A copy that a test can damage."""
    return DataFolder.open(shutil.copytree(word_data.path, tmp_path / "data"))


def flip(path, position=200):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_rejects_a_flipped_bit_before_writing_anything(data, tmp_path, split):
    flip(data.path / f"{split}.tokens")
    with pytest.raises(ValueError, match=f"{split}.tokens: damaged.*prepare the data again"):
        run(data, tmp_path / "run", *SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_names_a_file_truncated_during_training(data, tmp_path):
    """Without a check, reading past the end of a mapped file kills the process."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        train_command(data, out, *LONG),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_for(lambda: RunFolder(out).checkpoints() and reports(out), process)
        os.truncate(data.path / "train.tokens", 0)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 2, error
    assert error.startswith(f"zipflm: {data.path}/train.tokens: changed while in use, from ")
    assert error.count("\n") == 1
    found = RunFolder(out).checkpoints()
    assert found
    for checkpoint in found:
        checkpoint.verify()
    assert not list(out.rglob(".*"))
