"""A real server for tests: uvicorn in a thread, on a free port."""

import asyncio
import json
import signal
import socket
import threading
import time
from contextlib import closing, contextmanager

import httpx

from zipflm.serving.server import bind_socket, run
from zipflm.serving.worker import Limits


def head(path, length):
    """The head of a POST request."""
    kind = "Host: localhost\r\nContent-Type: application/json"
    return f"POST {path} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n".encode()


class Running:
    """A running server, as a context manager."""

    def __init__(self, models, limits=None, **options):
        self._models, self._limits, self._options = models, limits or Limits(), options
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.listener = bind_socket("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        headers = {"Content-Type": "application/json"}
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=headers)
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_):
        self.client.close()
        if self._thread.is_alive():
            self.end()
            self._thread.join(1)
        if self._thread.is_alive():
            self.end()  # now
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        on_start = self._remember
        asyncio.run(
            run(self._models, self.listener, self._limits, on_start=on_start, **self._options)
        )

    def _remember(self, server, service):
        self._server, self.worker, self._loop = server, service.worker, asyncio.get_running_loop()
        self._started.set()

    def end(self):
        """Like Ctrl-C."""
        self._server.handle_exit(signal.SIGINT, None)

    def is_closed(self):
        """Whether new connections are refused."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    def has_ended(self, seconds=30):
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def post(self, path, **fields):
        return self.client.post(path, json=fields)

    def score(self, text, **fields):
        answer = self.post("/score", text=text, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, prompt, **fields):
        answer = self.post("/v1/completions", prompt=prompt, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name):
        """A value from /metrics; 0 if missing."""
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

    def until(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "timed out"
            time.sleep(0.01)

    @contextmanager
    def stalls(self):
        """CPU seconds for which the event loop was blocked, every 5 ms."""
        found = []

        async def watch():
            while True:
                before = time.thread_time()
                await asyncio.sleep(0.005)
                found.append(time.thread_time() - before)

        watching = asyncio.run_coroutine_threadsafe(watch(), self._loop)
        yield found
        done = len(found)
        self.until(lambda: len(found) > done + 1)
        watching.cancel()

    def begin(self, path, fields):
        """Send a request and return the connection."""
        body = json.dumps(fields).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(head(path, len(body)) + body)
        return connection

    def raw(self, data):
        """Send raw bytes and return the response."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=60)) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


def slowed(monkeypatch, seconds):
    """Slow down every generation step."""
    from zipflm.language.decoding import TextDecoder

    step = TextDecoder.step

    def slow(self):
        time.sleep(seconds)
        return step(self)

    monkeypatch.setattr(TextDecoder, "step", slow)
