"""A real server for the tests: uvicorn in a thread of this process, on a free port."""

import asyncio
import json
import socket
import threading
import time
from contextlib import closing, contextmanager

import httpx

from zipflm.serving.queue import Limits
from zipflm.serving.server import bound, run


def head(path, length):
    """Of a request whose body follows."""
    kind = "Host: localhost\r\nContent-Type: application/json"
    return f"POST {path} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n".encode()


class Running:
    """From `with` on until its end."""

    def __init__(self, models, limits=None, **options):
        self._models, self._limits, self._options = models, limits or Limits(), options
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.listener = bound("127.0.0.1", 0)
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

    def _remember(self, server):
        self.server, self._loop = server, asyncio.get_running_loop()
        self._started.set()

    @property
    def worker(self):
        return self.server.service.worker

    def end(self):
        """What a signal does."""
        self._loop.call_soon_threadsafe(self.server.end)

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
        """The value of a line of /metrics, 0 if it is not there yet."""
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

    def until(self, is_so, seconds=30):
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)

    @contextmanager
    def stalls(self):
        """Seconds of the event loop's own work before others get their turn, every 5 ms."""
        found = []

        async def watch():
            while True:
                before = time.thread_time()  # other processes do not count
                await asyncio.sleep(0.005)
                found.append(time.thread_time() - before)

        watching = asyncio.run_coroutine_threadsafe(watch(), self._loop)
        yield found
        done = len(found)
        self.until(lambda: len(found) > done + 1)
        watching.cancel()

    def begin(self, path, fields):
        """A request whose answer nobody waits for yet: the connection."""
        body = json.dumps(fields).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(head(path, len(body)) + body)
        return connection

    def raw(self, data):
        """What the server says to these bytes."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=60)) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


def slowed(monkeypatch, seconds):
    """Every step of writing takes so long: for tests that must come in between."""
    from zipflm.language.decoding import TextDecoder

    step = TextDecoder.step

    def slow(self):
        time.sleep(seconds)
        return step(self)

    monkeypatch.setattr(TextDecoder, "step", slow)
