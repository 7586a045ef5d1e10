"""Scan chunks on a Dask cluster, for texts that are too large for one machine.

Workers run the same tasks as local processes (`scan.map_in_processes`). About two chunks per worker
thread are pending at a time, so the scheduler and the client use little memory. If a worker is
lost, another one processes its chunks. Anyone who can reach a scheduler can run code on its
workers: use TLS addresses outside a private network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from zipflm import __version__
from zipflm.data.scan import ScannedChunk, Task, ahead
from zipflm.data.text import Chunk, is_url

LOCAL = "local"
"""Used instead of an address: start a temporary cluster of processes on this machine."""
_CONNECT_SECONDS = 10
_WAIT_FOR_WORKERS_SECONDS = 60
_POLL_SECONDS = 5
_IGNORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Preloaded by local workers, because Ctrl-C reaches them as well."""


@dataclass(frozen=True)
class Cluster:
    """A connection to a scheduler."""

    client: Any
    address: str
    """As the user wrote it."""

    def map_in_order(
        self, task: Task, chunks: Iterator[Chunk]
    ) -> Iterator[tuple[Chunk, ScannedChunk]]:
        """Yield every chunk with its result, as a `scan.MapInOrder`."""
        self._require_workers()
        max_pending = 2 * sum(self.client.nthreads().values())
        for chunk, future in ahead(self._submitted(task, chunks), max_pending):
            yield chunk, self._result(chunk, future)

    def _submitted(self, task: Task, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        for chunk in chunks:
            if chunk.data is None and not is_url(chunk.source):
                chunk = replace(chunk, source=os.path.abspath(chunk.source))
            yield chunk, self.client.submit(on_worker, chunk, task, _version(), pure=False)

    def _result(self, chunk: Chunk, future: Any) -> ScannedChunk:
        while not future.done():
            try:
                future.result(timeout=_POLL_SECONDS)
            except Exception:  # an error of the task is raised below
                self._require_workers()
        try:
            result: ScannedChunk = future.result()
        except (Exception, asyncio.CancelledError) as error:
            is_from_dask = type(error).__module__.startswith(("distributed.", "tornado."))
            if isinstance(error, ValueError | OSError) and not is_from_dask:
                raise  # from `on_worker`
            raise ChildProcessError(
                f"Dask scheduler {self.address}: no worker could process {chunk.source} at byte "
                f"{chunk.start}: {_first_line(error)}; check that the scheduler is running and "
                "that all workers have this version of zipflm and enough memory"
            ) from error
        return result

    def _require_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS_SECONDS)
        except TimeoutError:
            raise ConnectionError(
                f"Dask scheduler {self.address}: no workers after {_WAIT_FOR_WORKERS_SECONDS} "
                "seconds; start one with dask worker"
            ) from None


def on_worker(chunk: Chunk, task: Task, version: str) -> ScannedChunk:
    """Run a task on a worker. `version` is the `_version()` of the client."""
    if version != _version():
        raise ValueError(
            f"the worker on {socket.gethostname()} has {_version()}, but this machine has "
            f"{version}; use the same zipflm and Python everywhere and restart the workers"
        )
    try:
        chunk = replace(chunk, data=chunk.read())
    except OSError as error:
        raise OSError(
            f"{chunk.source}: not readable by the worker on {socket.gethostname()} "
            f"({error.strerror or error}); every worker must be able to read the texts at the same "
            "path or URL (s3://...)"
        ) from None
    return task(chunk)


def _version() -> str:
    """Return what client and workers must share. Unicode data defines letters and whitespace."""
    return f"zipflm {__version__} with Unicode {unicodedata.unidata_version}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


@contextmanager
def connected(address: str, processes: int) -> Iterator[Cluster]:
    """Connect to the scheduler at `address`. `local` starts a cluster of `processes` workers here.

    Raises ValueError if Dask is not installed, ConnectionError if no scheduler responds.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise ValueError(f"engine=dask: needs {error.name}; pip install dask distributed") from None
    quiet = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    with (
        dask.config.set(quiet),
        _silent("distributed", "tornado", "asyncio"),
        _client(distributed, address, processes) as client,
    ):
        yield Cluster(client, address)


def _client(distributed: Any, address: str, processes: int) -> Any:
    if address == LOCAL:  # without an address, a client starts a cluster and stops it at the end
        return distributed.Client(
            n_workers=processes,
            threads_per_worker=1,  # splitting text holds the GIL
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            preload=[_IGNORE_SIGINT],
            set_as_default=False,
        )
    try:
        with ThreadPoolExecutor(1) as thread:  # this thread may have a running event loop
            thread.submit(asyncio.run, _require_dask(distributed, address)).result()
        return distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except Exception as error:
        raise ConnectionError(
            f"Dask scheduler {address}: no response ({_first_line(error)}); start one "
            "with dask scheduler and use the address it prints, or use local"
        ) from None


async def _require_dask(distributed: Any, address: str) -> None:
    """Raise an error unless a Dask process responds.

    A client would wait forever for another kind of server, such as the scheduler's dashboard.
    """
    options = distributed.Security().get_connection_args("client")
    connecting = distributed.comm.connect(address, timeout=_CONNECT_SECONDS, **options)
    comm = await asyncio.wait_for(connecting, _CONNECT_SECONDS + 1)
    await comm.close()


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Silence the loggers of libraries, which repeat errors. Each of them sets its own level."""
    known = (name for name in logging.root.manager.loggerDict if name.split(".")[0] in names)
    before = {logger: logger.level for logger in map(logging.getLogger, [*known])}
    for logger in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
