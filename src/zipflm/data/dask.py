"""Scanning chunks on a Dask cluster, for texts that are too much for one machine.

The workers do what local processes do (`scan.in_processes`): a task is a pure function of a chunk,
and numbers of its words come back, some 3 bytes a token. Two chunks per worker thread are under
way, and the rest wait in their files, so that neither scheduler nor client fills up. If a worker is
lost, its chunks run elsewhere.

A scheduler is trusted with the texts, and anyone who may talk to one may run code on its workers:
use TLS addresses outside a network of your own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import unicodedata
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from zipflm import __version__
from zipflm.data.scan import ScannedChunk, Task
from zipflm.data.text import Chunk, is_url

LOCAL = "local"
"""Instead of an address: a cluster of processes on this machine, for as long as it takes."""
CHUNK_BYTES = 1 << 24
"""Text per task: enough that a task's millisecond in the scheduler does not matter."""
_CONNECT_SECONDS = 10
_WAIT_FOR_WORKERS_SECONDS = 60
_POLL_SECONDS = 5
_LEAVE_CTRL_C_TO_THE_PARENT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Preloaded by local workers, which a terminal interrupts as well."""


@dataclass(frozen=True)
class Cluster:
    """A connection to a scheduler."""

    client: Any
    address: str
    """As the user wrote it."""

    def in_order(self, task: Task, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, ScannedChunk]]:
        """Every chunk with its result, as `scan.InOrder`."""
        self._require_workers()
        ahead = 2 * sum(self.client.nthreads().values())
        waiting: deque[tuple[Chunk, Any]] = deque()
        for chunk in chunks:
            future = self.client.submit(on_worker, _reachable(chunk), task, _edition(), pure=False)
            waiting.append((chunk, future))
            if len(waiting) > ahead:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[tuple[Chunk, Any]]) -> tuple[Chunk, ScannedChunk]:
        chunk, future = waiting.popleft()
        while not future.done():
            try:
                future.result(timeout=_POLL_SECONDS)
            except Exception:  # raised below, if it is the task's
                self._require_workers()
        try:
            return chunk, future.result()
        except (Exception, asyncio.CancelledError) as error:
            is_of_dask = type(error).__module__.startswith(("distributed.", "tornado."))
            if isinstance(error, ValueError | OSError) and not is_of_dask:
                raise  # of the text, as in a process of our own
            raise ChildProcessError(
                f"--scheduler {self.address}: {chunk.source} at byte {chunk.start} could not be "
                f"prepared by any worker: {_first_line(error)}; is the scheduler still there, and "
                "do all workers have this version of zipflm and enough memory?"
            ) from error

    def _require_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS_SECONDS)
        except TimeoutError:
            raise ConnectionError(
                f"--scheduler {self.address}: has no workers after {_WAIT_FOR_WORKERS_SECONDS} "
                "seconds; start some (dask worker)"
            ) from None


def on_worker(chunk: Chunk, task: Task, edition: str) -> ScannedChunk:
    """Run a task on a worker; `edition` is the `_edition` of the client."""
    if edition != _edition():
        raise ValueError(
            f"the worker on {socket.gethostname()} has {_edition()}, this machine {edition}, and "
            "might find other words; install the same everywhere, and start the workers again"
        )
    try:
        chunk = replace(chunk, data=chunk.read())
    except OSError as error:
        raise OSError(
            f"{chunk.source}: the worker on {socket.gethostname()} cannot read it "
            f"({error.strerror or error}); put texts where every worker sees them under the same "
            "name, or give URLs (s3://...)"
        ) from None
    return task(chunk)


def _edition() -> str:
    """Equal for two processes that find the same words in a text: what a letter or white space is
    depends on Python's edition of Unicode."""
    return f"zipflm {__version__} with Unicode {unicodedata.unidata_version}"


def _reachable(chunk: Chunk) -> Chunk:
    """A chunk that a worker in another folder finds."""
    if chunk.data is not None or is_url(chunk.source):
        return chunk
    return replace(chunk, source=os.path.abspath(chunk.source))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


@contextmanager
def connected(address: str, processes: int) -> Iterator[Cluster]:
    """A cluster by its scheduler's address; `local` starts one of this many processes here.

    Raises ValueError if Dask is not installed, ConnectionError, naming the address, if no scheduler
    answers there.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise ValueError(
            f"--engine dask: needs {error.name}: pip install dask distributed"
        ) from None
    # Their log is not for users of this command: errors are raised.
    quiet = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    with dask.config.set(quiet), _silent("distributed", "tornado"):
        if address != LOCAL:
            with _client(distributed, address) as client:
                yield Cluster(client, address)
            return
        with (
            distributed.LocalCluster(
                n_workers=processes,
                threads_per_worker=1,  # splitting text holds Python's lock
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                preload=[_LEAVE_CTRL_C_TO_THE_PARENT],
            ) as local,
            distributed.Client(local, set_as_default=False) as client,
        ):
            yield Cluster(client, address)


def _client(distributed: Any, address: str) -> Any:
    try:
        with ThreadPoolExecutor(1) as thread:  # where no event loop is running
            thread.submit(asyncio.run, _greet(distributed, address)).result()
        return distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except Exception as error:
        raise ConnectionError(
            f"--scheduler {address}: no Dask scheduler answers there ({_first_line(error)}); "
            "start one (dask scheduler) and give the address it prints, or give local"
        ) from None


async def _greet(distributed: Any, address: str) -> None:
    """Raise an error unless a Dask process answers.

    A client waits forever for a server of another kind, such as the scheduler's own dashboard.
    """
    how = distributed.Security().get_connection_args("client")
    greeting = distributed.comm.connect(address, timeout=_CONNECT_SECONDS, **how)
    comm = await asyncio.wait_for(greeting, _CONNECT_SECONDS + 1)
    await comm.close()


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    # Each part of these libraries has a level of its own.
    known = (name for name in logging.root.manager.loggerDict if name.split(".")[0] in names)
    before = {logger: logger.level for logger in map(logging.getLogger, [*known])}
    for logger in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
