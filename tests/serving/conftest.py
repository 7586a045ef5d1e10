import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from loaded_models import loaded
from serving.services import Running

from zipflm.serving.models import make_served_model
from zipflm.serving.worker import Limits


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(word_data, bpe_data):
    """A word model, the default, and a subword model."""
    return {
        "words": make_served_model("words", loaded(word_data, "ADP-T")),
        "pieces": make_served_model("pieces", loaded(bpe_data, "BPE-T")),
    }


@pytest.fixture
def words(models):
    return models["words"]


@pytest.fixture
def pieces(models):
    return models["pieces"]


@pytest.fixture(scope="session")
def service(models):
    """A server shared by tests that do not modify it."""
    with Running(models, Limits(max_text_tokens=200)) as running:
        yield running
