import errno
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from fairseq_checkpoints import NEWEST, import_run
from hypothesis import HealthCheck, settings
from small_data import make_folder
from toy_run import ToyRun

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported

# Examples have no time limit: the machine may be busy. CI uses the same examples every time.
settings.register_profile(
    "busy machine",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy machine")

# Shells start background jobs, and thus their children, with SIGINT ignored, and nohup with SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ["HF_HUB_OFFLINE"] = "1"  # must be set before transformers is imported

collect_ignore = ["interop/huggingface/ten_steps.py"]
"""A script for a test to start; collecting doctests would run it."""

# Tests are too small to profit from more threads.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1))


def pytest_configure(config):
    """With another torch than that of constraints.txt, only our own warnings are errors."""
    constraints = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8")
    if torch.__version__.split("+")[0] not in re.findall(r"^torch==(.*)", constraints, re.M):
        config.addinivalue_line("filterwarnings", "default")
        config.addinivalue_line("filterwarnings", "error::RuntimeWarning")


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz-seconds", type=float, default=1.5, help="seconds per fuzzer (default: 1.5)"
    )
    parser.addoption("--fuzz-seed", type=int, default=1, help="seed of the fuzzers (default: 1)")


@pytest.fixture
def fuzz_seconds(request):
    return request.config.getoption("--fuzz-seconds")


@pytest.fixture
def fuzz_seed(request):
    return request.config.getoption("--fuzz-seed")


def pytest_collection_modifyitems(items):
    # Files with long tests first, so that no worker is left with one at the end.
    long = {item.path for item in items if {"slow", "multi_process"} & set(item.keywords)}
    items.sort(key=lambda item: item.path not in long)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def triton_interpreter():
    """Triton kernels on CPU tensors."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU here")


@pytest.fixture
def one_thread():
    """Small models are slower with two threads, especially on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread_of_a_cpu(one_thread, monkeypatch):
    """The device of the numbers in the documentation."""
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
    """A folder with another vocabulary."""
    return make_folder(tmp_path_factory.mktemp("data"), "others", seed=1, max_size=40)


@pytest.fixture(scope="session")
def imported_run(tmp_path_factory):
    """The golden ADP-T model as a run folder."""
    return import_run(NEWEST, tmp_path_factory.mktemp("runs") / "adpt")


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def no_locks(request, monkeypatch):
    """A file system without locks, which reports this error."""

    def flock(descriptor, operation):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", flock)
    return request.param
