import bz2
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from zipflm.config import Splitting
from zipflm.data import dask
from zipflm.data.dask import connected, on_worker
from zipflm.data.prepare import Options, prepare
from zipflm.data.text import Chunk

pytestmark = [
    pytest.mark.multi_process,
    # Dask's shutdown leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CHUNK = Chunk("x.txt", 70, 2, b"a\n", 2)


@contextmanager
def local_cluster(workers):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Words by Zipf's law, some in one chunk only and some not ASCII."""
    root, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    words = [f"w{number}" for number in range(3000)] + ["caf\u00e9", "<unk>", "Yes,", "it's", "b@@"]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for name, lines in (("train", 900), ("more", 300), ("valid", 100)):
        text = [" ".join(draw.choices(words, weights, k=draw.randint(0, 12))) for _ in range(lines)]
        (root / f"{name}.txt").write_text("\n".join(text), encoding="utf-8")
    (root / "more.txt.bz2").write_bytes(bz2.compress((root / "more.txt").read_bytes()))
    return root


def assert_same_folder(ours, theirs):
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    for path in theirs.iterdir():
        assert (ours / path.name).read_bytes() == path.read_bytes(), path.name


def test_cluster_with_lost_worker_matches_one_process(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.data.scan.CHUNK_BYTES", 2000)
    splits = {
        "train": [texts / "train.txt", texts / "more.txt.bz2"],
        "valid": [f"file://{texts}/valid.txt"],
    }
    reports = []
    with local_cluster(2) as running:

        def kill_a_worker(what, done, total):
            reports.append(what)
            if len(reports) == 3:
                os.kill(next(iter(running.workers.values())).process.pid, signal.SIGKILL)

        for number, options in enumerate(
            [
                Options(splitting=Splitting("words", True), min_count=1),
                Options(bpe=60),
                Options(encoding="latin-1", max_size=300),
            ]
        ):
            theirs = prepare(tmp_path / f"theirs-{number}", splits, options)
            ours = prepare(
                tmp_path / f"ours-{number}",
                splits,
                options,
                scheduler=running.scheduler_address,
                report=kill_a_worker,
            )
            assert_same_folder(ours.path, theirs.path)
        (tmp_path / "bad.txt").write_bytes(b"good line\n" * 1000 + b"bad \xff byte\n")
        with pytest.raises(ValueError, match=r"bad\.txt: not UTF-8 at byte 10004; "):
            prepare(
                tmp_path / "bad",
                {"train": [tmp_path / "bad.txt"]},
                scheduler=running.scheduler_address,
            )
    assert reports.count("reading train") > 30


def test_local_cluster_command(texts, tmp_path):
    command = [sys.executable, "-m", "zipflm", "prepare", texts / "train.txt", "--processes", "1"]
    command += ["--engine", "dask", "--out", tmp_path / "d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    theirs = prepare(tmp_path / "theirs", {"train": [texts / "train.txt"]})
    assert_same_folder(tmp_path / "d", theirs.path)


def fail(chunk):
    raise RuntimeError("something\nand more")


def length(chunk):
    return len(chunk.read())


def test_pending_chunks_are_bounded_and_lost_cluster_is_an_error(monkeypatch):
    taken = []

    def chunks():
        for number in range(40):
            taken.append(number)
            yield Chunk("x", number, 2, b"a\n", 2)

    with local_cluster(1) as running, connected(running.scheduler_address, 1) as connection:
        for number, (chunk, found) in enumerate(connection.map_in_order(length, chunks())):
            assert chunk.start == number and found == 2
            assert len(taken) <= number + 4
        assert len(taken) == 40
        message = r"no worker could process x\.txt at byte 70: RuntimeError: something;"
        with pytest.raises(ChildProcessError, match=message):
            list(connection.map_in_order(fail, iter([CHUNK])))
        monkeypatch.setattr(dask, "_WAIT_FOR_WORKERS_SECONDS", 0.2)
        monkeypatch.setattr(dask, "_POLL_SECONDS", 0.2)
        results = connection.map_in_order(length, chunks())
        next(results)
        running.scale(0)
        while connection.client.nthreads():
            time.sleep(0.05)
        with pytest.raises(ConnectionError, match="no workers after 0.2 seconds"):
            list(results)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_unreachable_scheduler_error_names_address(tmp_path, monkeypatch, address):
    monkeypatch.setattr(dask, "_CONNECT_SECONDS", 1)
    (tmp_path / "x.txt").write_text("a b\n")
    with pytest.raises(ConnectionError, match=f"^Dask scheduler {address}: no response"):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, scheduler=address)
    assert os.listdir(tmp_path) == ["x.txt"]


def test_does_not_wait_for_other_servers(monkeypatch):
    monkeypatch.setattr(dask, "_CONNECT_SECONDS", 0.5)
    taken = []

    def take():
        with suppress(OSError):  # raised when the test closes the server
            while True:
                taken.append(server.accept()[0])  # and never answer

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=take, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address}: no response"):
            with connected(address, 1):
                pass
        server.shutdown(socket.SHUT_RDWR)
    assert taken
    for connection in taken:
        connection.close()


def test_worker_errors_name_the_host():
    missing = Chunk("/nowhere/x.txt", 0, 10, None, 10)
    with pytest.raises(OSError, match=r"^/nowhere/x\.txt: not readable by the worker on "):
        on_worker(missing, length, dask._version())
    with pytest.raises(ValueError, match=r"^the worker on .* this machine has zipflm 0\.0\.9"):
        on_worker(CHUNK, length, "zipflm 0.0.9")


@pytest.mark.parametrize("package", ["dask", "distributed"])
def test_missing_package_error_shows_pip_command(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "x.txt").write_text("a b\n")
    message = f"^engine=dask: needs {package}; pip install dask distributed$"
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, scheduler="local")
    assert os.listdir(tmp_path) == ["x.txt"]
