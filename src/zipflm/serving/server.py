"""`zipflm serve`: load, listen, answer, and end in good order.

A first SIGTERM or SIGINT lets everything that was accepted be answered and refuses what comes
after it; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import uvicorn

from zipflm.serving.app import Service, make_app
from zipflm.serving.metrics import Metrics
from zipflm.serving.middleware import is_local_name, read_keys
from zipflm.serving.models import ServedModel, load_models
from zipflm.serving.queue import Limits
from zipflm.serving.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str | None = None,
    dtype: str = "float32",
    checkpoint: str | None = None,
    memory: Sequence[str] = (),
    limits: Limits | None = None,
    api_key_file: str | None = None,
    origins: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve runs until a signal comes; port 0 is any that is free."""
    keys = read_keys(api_key_file) if api_key_file else []
    with bound(host, port) as listener:
        models = load_models(
            paths, device=device, dtype=dtype, checkpoint=checkpoint, memory=memory
        )
        gc.freeze()  # or every full collection would go through all of torch, while requests wait
        address = f"http://{_shown(host)}:{listener.getsockname()[1]}"
        asyncio.run(
            run(
                models,
                listener,
                limits or Limits(),
                keys=keys,
                origins=origins,
                on_start=lambda _: say(f"serving {', '.join(models)} at {address}"),
            )
        )


async def run(
    models: Mapping[str, ServedModel],
    listener: socket.socket,
    limits: Limits,
    *,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    on_start: Callable[[Server], None] = lambda server: None,
) -> None:
    """Answer requests for these models until `Server.end` is called, or a signal comes."""
    metrics = Metrics()
    worker = Worker(list(models.values()), limits, metrics)
    service = Service(models, worker, metrics)
    is_local = is_local_name(listener.getsockname()[0])
    app = make_app(service, keys=keys, origins=origins, is_local=is_local)
    config = uvicorn.Config(
        app,
        # Warnings and errors alone: no addresses and no texts of clients.
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        # Longer than proxies keep theirs, so that none sends into a connection that is just closed.
        timeout_keep_alive=75,
        # When all is computed; for clients that do not read their answers.
        timeout_graceful_shutdown=10,
    )
    try:
        await Server(config, service, on_start).serve([listener])
    finally:
        service.stop()


class Server(uvicorn.Server):
    """Ends when it has answered everything, with status 0."""

    should_exit: bool

    def __init__(
        self, config: uvicorn.Config, service: Service, on_start: Callable[[Server], None]
    ) -> None:
        super().__init__(config)
        self.service = service
        self._on_start = on_start

    def end(self) -> None:
        """Take nothing on any more, and end when everything is answered; called again, now."""
        if self.service.is_ending:
            self.force_exit = self.should_exit = True
        self.service.is_ending = True
        self.service.worker.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start(self)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own would raise the signal again at the end, and so end with its status."""
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                loop.add_signal_handler(number, self.end)
        yield

    async def on_tick(self, counter: int) -> bool:
        if self.service.is_ending and not self.service.worker.num_unanswered:
            self.should_exit = True
        return await super().on_tick(counter)


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, on which nothing listens yet: taken before models are loaded, which
    may take long."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, number, _, address = found[0]
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"--host {host} --port {port}: {reason}; choose another") from None
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
