"""Start and shutdown of the server."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import pytest
import training_runs
from serving.services import Running, slowed

from zipflm import load
from zipflm.serving.server import bind_socket, read_keys


@pytest.fixture(scope="module")
def run(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("serving") / "run"
    training_runs.run(word_data, out, "training.max_updates=4")
    return out


@contextmanager
def process(*arguments):
    """Run `zipflm serve`; yields the process and its address."""
    command = training_runs.command("serve", *arguments, "--port", 0, "--device", "cpu")
    child = subprocess.Popen(
        command, env=training_runs.environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        line = child.stderr.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\d+)$", line.strip())
        assert found, line + child.stderr.read()
        yield child, found[1]
    finally:
        child.kill()
        child.communicate()


def ask(address, path, **fields):
    body = json.dumps(fields).encode() if fields else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_running_server_does_not_need_its_run_folder(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    expected = load(run, device="cpu").score("ba be bu").logprob
    with process(copy) as (child, address):
        (entry,) = ask(address, "/v1/models")["data"]
        assert entry["id"] == "copy"
        assert entry["zipflm"]["perplexity"] == pytest.approx(
            training_runs.validations(run)[-1].perplexity
        )
        assert ask(address, "/score", text="ba be bu")["texts"][0]["logprob"] == pytest.approx(
            expected, abs=1e-5
        )
        # The worst case for memory-mapped files: they change, then shrink.
        for path in copy.rglob("*"):
            if path.is_file():
                os.chmod(path, 0o600)
                size = path.stat().st_size
                path.write_bytes(b"\xff" * size)
                path.write_bytes(b"")
        assert ask(address, "/score", text="ba be bu")["texts"][0]["logprob"] == pytest.approx(
            expected, abs=1e-5
        )
        shutil.rmtree(copy)
        assert ask(address, "/score", text="ba be bu", top=3)["texts"][0]["logprob"] == (
            pytest.approx(expected, abs=1e-5)
        )
        assert ask(address, "/v1/completions", prompt="ba", max_tokens=3)["choices"]
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_shutdown_finishes_accepted_requests(models, monkeypatch):
    slowed(monkeypatch, 0.05)
    with Running(models) as service, ThreadPoolExecutor(2) as pool:
        running = pool.submit(service.complete, "ba", max_tokens=60, lines=0)
        service.until(lambda: service.worker.num_generating == 1)
        with closing(
            service.begin(
                "/v1/completions", {"prompt": "be", "max_tokens": 60, "lines": 0, "stream": True}
            )
        ) as stream:
            service.until(lambda: service.worker.num_generating == 2)
            service.end()
            service.until(service.is_closed)
            assert running.result()["usage"]["completion_tokens"] == 60
            received = b"".join(iter(lambda: stream.recv(65536), b""))
            assert b"data: [DONE]" in received and b'"finish_reason":"length"' in received
        assert service.has_ended()
        with pytest.raises(httpx.ConnectError):
            service.client.get("/health")


def test_second_signal_stops_immediately(models, monkeypatch):
    slowed(monkeypatch, 0.05)
    with Running(models) as service:
        with closing(
            service.begin("/v1/completions", {"prompt": "ba", "max_tokens": 3000, "lines": 0})
        ):
            service.until(lambda: service.worker.num_generating == 1)
            service.end()
            time.sleep(0.2)
            assert not service.has_ended(0)
            service.end()
            assert service.has_ended(10)


def test_address_in_use(run):
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port}: Address already in use"):
            bind_socket("127.0.0.1", port)
    with pytest.raises(ValueError, match="--host no.such.host.invalid"):
        bind_socket("no.such.host.invalid", 0)


def test_responses_are_sent_without_delay():
    # Nagle's algorithm would delay each response by 40 ms.
    with bind_socket("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_reads_api_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert read_keys(str(file)) == [b"one", b"two"]
    file.write_text("\n")
    with pytest.raises(ValueError, match="contains no keys"):
        read_keys(str(file))


def test_stops_all_threads(models):
    before = threading.active_count()
    with Running(models) as service:
        service.score("ba")
    assert threading.active_count() == before
