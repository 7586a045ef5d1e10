import pytest
from fairseq_checkpoints import DICT, GOLDEN

from zipflm.data.prepare import Options, prepare


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The golden text with the golden dictionary."""
    texts = {split: [GOLDEN / "data" / "text" / f"{split}.txt"] for split in ("valid", "test")}
    return prepare(tmp_path_factory.mktemp("data") / "words", texts, Options(vocabulary=DICT)).path


@pytest.fixture
def run(imported_run):
    """An imported ADP-T model."""
    return imported_run
