from pathlib import Path

import pytest
from training_runs import config_of

from zipflm.training.trainer import train


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture(scope="session")
def trained_runs(word_data, bpe_data, tmp_path_factory):
    """A run of words and one of pieces, each with its data."""
    root = tmp_path_factory.mktemp("trained")
    every = ["training.checkpoint_every=2", "training.validate_every=2", "training.max_updates=4"]
    made = {}
    for preset, data in (("tiny/ADP-T", word_data), ("tiny/BPE-T", bpe_data)):
        out = root / preset.partition("/")[2]
        train(config_of(data, *every, preset=preset), data, out, device="cpu", keep=0)
        made[out] = data
    return made
