import errno
import os
import re
from pathlib import Path

import pytest
import torch
from fairseq_checkpoints import NEWEST, import_run
from hypothesis import HealthCheck, settings
from small_data import make_folder
from toy_run import ToyRun

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which nobody has yet

# How long an example takes depends on what else the machine does.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: no test uses a network

collect_ignore = ["interop/huggingface/ten_steps.py"]
"""A script that a test starts; the search for doctests would run it."""

# Tests are small; more threads than this only wait for each other, and for other workers' threads.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))


def pytest_configure(config):
    """Every warning is an error with the torch of constraints.txt; with another, whose warnings
    are new, only those of the category of our own."""
    constraints = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8")
    if torch.__version__.split("+")[0] not in re.findall(r"^torch==(.*)", constraints, re.M):
        config.addinivalue_line("filterwarnings", "default")
        config.addinivalue_line("filterwarnings", "error::RuntimeWarning")


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz-seconds", type=float, default=1.5, help="for how long each fuzzer runs; 1.5 seconds"
    )
    parser.addoption("--fuzz-seed", type=int, default=1, help="which cases fuzzers make up; 1")


@pytest.fixture
def fuzz_seconds(request):
    return request.config.getoption("--fuzz-seconds")


@pytest.fixture
def fuzz_seed(request):
    return request.config.getoption("--fuzz-seed")


def pytest_collection_modifyitems(items):
    # Files with long tests first: of several workers, none is left with them at the end.
    long = {item.path for item in items if {"slow", "multi_process"} & set(item.keywords)}
    items.sort(key=lambda item: item.path not in long)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch):
    """Trainings warn of other processes."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


@pytest.fixture
def triton_interpreter():
    """Kernels that take tensors of a CPU."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU here, which has tests of its own")


@pytest.fixture
def one_thread():
    """Models this small only wait for a second thread, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread_of_a_cpu(one_thread, monkeypatch):
    """The device with which the documents were written."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory):
    """The data and the run of docs/getting-started.md."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        made = ToyRun(tmp_path_factory.mktemp("getting-started"))
    torch.set_num_threads(before)
    return made


@pytest.fixture(scope="session")
def word_data(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data"), "words")


@pytest.fixture(scope="session")
def bpe_data(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data"), "pieces", bpe=40)


@pytest.fixture(scope="session")
def other_data(tmp_path_factory):
    """Another vocabulary."""
    return make_folder(tmp_path_factory.mktemp("data"), "others", seed=1, max_size=40)


@pytest.fixture(scope="session")
def imported_run(tmp_path_factory):
    """The golden ADP-T model as a run folder."""
    return import_run(NEWEST, tmp_path_factory.mktemp("runs") / "adpt")


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def no_locks(request, monkeypatch):
    """A file system that has no locks; the error with which it says so."""

    def flock(descriptor, operation):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", flock)
    return request.param
