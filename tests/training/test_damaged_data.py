import shutil

import pytest
from training_runs import run

from zipflm.data.folder import DataFolder

SHORT = ["training.max_updates=2"]


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
