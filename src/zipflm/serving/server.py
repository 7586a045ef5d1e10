"""`zipflm serve`: load, listen, answer, and end in good order.

A first SIGTERM or SIGINT lets everything that was accepted be answered and refuses what comes
after it; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn

from zipflm.serving.app import Service, make_app
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import load_models
from zipflm.serving.worker import Limits, Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    dtype: str = "float32",
    checkpoint: str | None = None,
    limits: Limits | None = None,
    api_key_file: str | None = None,
    origins: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve runs until a signal comes; port 0 is any that is free."""
    keys = read_keys(api_key_file) if api_key_file else []
    with _bound(host, port) as listener:
        models = load_models(paths, device=device, dtype=dtype, checkpoint=checkpoint)

        async def run() -> None:
            metrics = Metrics()
            worker = Worker(list(models.values()), limits or Limits(), metrics)
            service = Service(models, worker, metrics)
            app = make_app(service, keys=keys, origins=origins)
            server = _Server(uvicorn.Config(app, log_level="warning", lifespan="off"), service)
            address = f"http://{_shown(host)}:{listener.getsockname()[1]}"
            server.when_started(lambda: say(f"serving {', '.join(models)} at {address}"))
            await server.serve([listener])
            worker.stop()

        asyncio.run(run())


def read_keys(path: str) -> list[bytes]:
    """One key per line."""
    keys = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"{path}: holds no key; write one per line")
    return keys


class _Server(uvicorn.Server):
    """Ends when it has answered everything, with status 0."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._started: Callable[[], None] = lambda: None

    def when_started(self, call: Callable[[], None]) -> None:
        self._started = call

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, and so end with its status."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        yield

    def _on_signal(self) -> None:
        if self._service.is_ending:
            self.force_exit = self.should_exit = True
        self._service.is_ending = True
        self._service.worker.close()

    async def on_tick(self, counter: int) -> bool:
        if self._service.is_ending and not self._service.worker.num_unanswered:
            self.should_exit = True
        return await super().on_tick(counter)


def _bound(host: str, port: int) -> socket.socket:
    """Taken before models are loaded, which may take long; nothing listens yet."""
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(f"--host {host} --port {port}: {error.strerror}") from None
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
