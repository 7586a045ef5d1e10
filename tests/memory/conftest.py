import pytest
from loaded_models import loaded
from small_data import make_folder


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data"), "words")


@pytest.fixture(scope="session")
def lm(data):
    return loaded(data)
