"""`zipflm serve`: start and stop the server.

After SIGTERM or SIGINT, accepted requests are finished and new ones are rejected. A second signal
stops the server immediately.
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
    memory: Sequence[str] = (),
    limits: Limits | None = None,
    api_key_file: str | None = None,
    origins: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Load the runs at `paths` and serve them until a signal stops the server. Port 0 selects a
    free port."""
    keys = read_keys(api_key_file) if api_key_file else []
    with bind_socket(host, port) as listener:
        models = load_models(
            paths, device=device, dtype=dtype, checkpoint=checkpoint, memory=memory
        )
        gc.freeze()  # so that garbage collection does not scan torch and the models
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
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
    """Run the server until `Server.end` is called or a signal arrives."""
    metrics = Metrics()
    worker = Worker(models.values(), limits, metrics)
    service = Service(models, worker, metrics)
    is_local = is_local_name(listener.getsockname()[0])
    app = make_app(service, keys=keys, origins=origins, is_local=is_local)
    config = uvicorn.Config(
        app,
        # Do not log client addresses or texts.
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        # Longer than the timeouts of common proxies, so that a proxy closes idle connections first.
        timeout_keep_alive=75,
        # Seconds to wait for clients that do not read their responses.
        timeout_graceful_shutdown=10,
    )
    try:
        await Server(config, service, on_start).serve([listener])
    finally:
        service.stop()


class Server(uvicorn.Server):
    """Finishes accepted requests before it stops, and exits with status 0."""

    should_exit: bool

    def __init__(
        self, config: uvicorn.Config, service: Service, on_start: Callable[[Server], None]
    ) -> None:
        super().__init__(config)
        self.service = service
        self._on_start = on_start

    def end(self) -> None:
        """Reject new requests, finish accepted ones, then stop. A second call stops immediately."""
        if self.service.worker.is_closed:
            self.force_exit = self.should_exit = True
        self.service.worker.is_closed = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start(self)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals. Uvicorn's version would raise them again at exit."""
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for signum in _SIGNALS:
                loop.add_signal_handler(signum, self.end)
        yield

    async def on_tick(self, counter: int) -> bool:
        if self.service.worker.is_closed and not self.service.worker.num_active:
            self.should_exit = True
        return await super().on_tick(counter)


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind the socket. Call this before loading models, so that an address in use is reported
    immediately."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"--host {host} --port {port}: {reason}; choose another host or port"
        ) from None
    # Connections inherit this. asyncio sets it only for sockets that it creates itself.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
