import pytest
import training_runs
from loaded_models import loaded

LABELS = ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T")


@pytest.fixture(scope="session")
def models(word_data, bpe_data):
    """An untrained model of every factorization."""
    return {
        label: loaded(bpe_data if label.startswith("BPE") else word_data, label) for label in LABELS
    }


@pytest.fixture(params=LABELS)
def lm(request, models):
    return models[request.param]


@pytest.fixture
def adp(models):
    return models["ADP-T"]


@pytest.fixture
def bpe(models):
    return models["BPE"]


@pytest.fixture(scope="session")
def run(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("language") / "run"
    training_runs.run(word_data, out, "training.max_updates=10")
    return out


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write
