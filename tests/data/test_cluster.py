"""Tasks on a Dask cluster come back in order, or with an error; nobody waits for ever."""

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

import pytest

import zipflm.cli
from zipflm.data import cluster as module
from zipflm.data.cluster import connected
from zipflm.data.prepare import prepare
from zipflm.data.text import Chunk

pytestmark = [
    pytest.mark.multi_process,
    # Sockets that Dask's own shutdown leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Of one worker process on this machine, which is our own."""
    with connected("local", 1) as running:
        yield running


def fail(chunk):
    raise RuntimeError("something\nand more")


def test_what_no_worker_can_do_names_the_chunk(cluster):
    chunk = Chunk("x.txt", 70, 10, b"", 10)
    message = r"x\.txt at byte 70 could not be prepared by any worker: RuntimeError: something; "
    with pytest.raises(ChildProcessError, match=message):
        list(cluster.in_order(fail, [(chunk,)]))


def length(chunk):
    return len(chunk.data)


def test_few_chunks_are_under_way_at_a_time(cluster):
    taken = []

    def jobs():
        for number in range(40):
            taken.append(number)
            yield (Chunk("x", number, 2, b"a\n", 2),)

    for number, (chunk, found) in enumerate(cluster.in_order(length, jobs())):
        assert chunk.start == number and found == 2
        assert len(taken) <= number + 4
    assert len(taken) == 40


def test_a_cluster_without_workers_is_an_error_not_a_wait(monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(module, "_WAIT_FOR_WORKERS_SECONDS", 0.2)
    with LocalCluster(
        n_workers=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as empty:
        with connected(empty.scheduler_address, 1) as cluster:
            with pytest.raises(ConnectionError, match=f"{empty.scheduler_address}: has no workers"):
                list(cluster.in_order(length, [(Chunk("x", 0, 2, b"a\n", 2),)]))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1:9", "nonsense://x", "::::"])
def test_a_scheduler_that_cannot_be_reached_is_named(tmp_path, monkeypatch, address):
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 1)
    (tmp_path / "x.txt").write_text("a b\n")
    with pytest.raises(ConnectionError, match=f"^--scheduler {address}: no Dask scheduler answers"):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, scheduler=address)
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_somebody_else_who_takes_the_connection_is_no_scheduler(monkeypatch, answer):
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.5)
    taken = []

    def take():
        with suppress(OSError):  # when the test is over
            while True:
                connection, _ = server.accept()
                connection.sendall(answer)
                taken.append(connection)  # and keep it

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=take, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address}: no Dask scheduler answers there"):
            with connected(address, 1):
                pass
        server.shutdown(socket.SHUT_RDWR)
    assert taken
    for connection in taken:
        connection.close()


def test_the_command_says_so_in_one_line_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    (tmp_path / "x.txt").write_text("a b\n")
    assert module._CONNECT_SECONDS == 10  # as is written for users
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 1)
    arguments = ["prepare", tmp_path / "x.txt", "--out", tmp_path / "d", "--engine", "dask"]
    arguments += ["--scheduler", "tcp://127.0.0.1:9"]
    monkeypatch.setattr(sys, "argv", ["zipflm", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    said = capfd.readouterr()
    assert (exit.value.code, said.out) == (2, "")
    assert said.err.startswith("zipflm: --scheduler tcp://127.0.0.1:9: no Dask scheduler answers")
    assert said.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["x.txt"]


def test_workers_of_our_own_leave_ctrl_c_to_the_command(cluster):
    assert set(cluster.client.run(_ignores_ctrl_c).values()) == {True}


def _ignores_ctrl_c():
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("package", ["dask", "distributed"])
def test_a_missing_extra_is_named_with_its_pip_line(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "x.txt").write_text("a b\n")
    message = f"^--engine dask: needs {package}: pip install dask distributed$"
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, scheduler="local")
    assert os.listdir(tmp_path) == ["x.txt"]
