import pytest
import torch
from loaded_models import loaded, on_disk

from zipflm.interop.huggingface.exchange import export_run
from zipflm.presets import FACTORIZATIONS

# Marks in the test suite of transformers, which test_transformers_suite runs.
MARKS = (
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "generate",
    "torch_compile_test",
    "torch_export_test",
)


def pytest_configure(config):
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.fixture(scope="session")
def runs(word_data, bpe_data, tmp_path_factory):
    """An untrained run folder of every factorization."""
    root = tmp_path_factory.mktemp("runs")
    return {
        label: on_disk(
            loaded(bpe_data if label.startswith("BPE") else word_data, label), root / label
        )
        for label in FACTORIZATIONS
    }


@pytest.fixture(scope="session")
def exported(runs, tmp_path_factory):
    """The exported runs, some with several weight files."""
    root = tmp_path_factory.mktemp("exported")
    for label, run in runs.items():
        export_run(run, root / label, max_shard_size="30KB" if label in ("ADP-T", "CNN") else "5GB")
    return {label: root / label for label in runs}


@pytest.fixture
def words():
    """Three rows of ids that begin with `</s>`."""
    ids = torch.randint(4, 60, (3, 9), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = 2
    return ids
