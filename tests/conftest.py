import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which nobody has yet

# Tests are small; more threads than this only wait for each other.
torch.set_num_threads(min(2, os.cpu_count() or 1))


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz-seconds", type=float, default=4.0, help="for how long each fuzzer runs; 4 seconds"
    )


@pytest.fixture
def fuzz_seconds(request):
    return request.config.getoption("--fuzz-seconds")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
