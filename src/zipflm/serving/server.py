"""`zipflm serve`: load runs and serve them with uvicorn.

After SIGTERM or SIGINT, uvicorn accepts no more connections and finishes accepted requests. Another
SIGINT stops it immediately.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

import uvicorn

from zipflm.serving.app import Service, make_app
from zipflm.serving.middleware import SEND_SECONDS, read_keys, require_origins
from zipflm.serving.models import ServedModel, load_models
from zipflm.serving.worker import Limits


def serve(
    paths: Sequence[str],
    *,
    host: str,
    port: int,
    device: str | None,
    dtype: str,
    checkpoint: str | None,
    memory: Sequence[str],
    limits: Limits,
    api_key_file: str | None,
    origins: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Load the runs at `paths` and serve them until a signal stops the server. Port 0 selects a
    free port."""
    keys = read_keys(api_key_file) if api_key_file else []
    require_origins(origins)
    with bind_socket(host, port) as listener:
        models = load_models(
            paths, device=device, dtype=dtype, checkpoint=checkpoint, memory=memory
        )
        gc.freeze()  # so that garbage collection does not scan torch and the models
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"

        def start(server: uvicorn.Server, _: Service) -> None:
            # When uvicorn has stopped, it raises signals again for the handlers from before.
            for signum in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signum, server.handle_exit)
            say(f"serving {', '.join(models)} at {address}")

        asyncio.run(run(models, listener, limits, keys=keys, origins=origins, on_start=start))


async def run(
    models: Mapping[str, ServedModel],
    listener: socket.socket,
    limits: Limits,
    *,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    on_start: Callable[[uvicorn.Server, Service], None],
) -> None:
    """Run a server until its `should_exit` is set, or a signal arrives."""
    service = Service(models, limits)
    is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    config = uvicorn.Config(
        make_app(service, keys=keys, origins=origins, is_local=is_local),
        # Do not log client addresses or texts.
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        # Longer than the timeouts of common proxies, so that a proxy closes idle connections first.
        timeout_keep_alive=75,
        # Seconds to finish accepted requests.
        timeout_graceful_shutdown=120,
    )
    server = uvicorn.Server(config)
    on_start(server, service)
    try:
        await server.serve([listener])
    finally:
        service.stop()


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
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: do not wait for clients that stopped reading
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SEND_SECONDS)
    return listener
