import shutil

import pytest
from training_runs import run as train_run

from zipflm.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture(scope="session")
def trained(word_data, tmp_path_factory):
    """A run with checkpoints after 2, 4 and 6 updates, all scored."""
    out = tmp_path_factory.mktemp("trained") / "run"
    every = ["training.checkpoint_every=2", "training.validate_every=2", "training.max_updates=6"]
    train_run(word_data, out, *every, keep=0)
    return out


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of this run that a test can damage."""
    return RunFolder(shutil.copytree(trained, tmp_path / "copy"))
