"""A connection to a Dask cluster, on which tasks run in order and none is waited for in vain.

A task is a function of a chunk of text. Two chunks a thread are under way, and the rest wait in
their files, so that neither scheduler nor client fills up; results come back in the order of the
text. A worker can be lost at any moment, and its chunks run elsewhere.

What travels is our own functions, chunks, arrays and words, by Dask's own protocol; no file of
anybody is ever unpickled. A scheduler is trusted with the texts, and whoever may talk to one may
run code on its workers: use TLS addresses outside a network of your own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zipflm.data.text import Chunk

LOCAL = "local"
"""Instead of an address: a cluster of processes on this machine, for as long as it takes."""
_CONNECT_SECONDS = 10
_WAIT_FOR_WORKERS_SECONDS = 60
_LEAVE_CTRL_C_TO_THE_PARENT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""What workers of our own do first; a terminal interrupts them too, and they would say so."""
_LOOK_FOR_WORKERS_SECONDS = 5
"""While a result does not come, how often to see whether there is anybody left to make it."""


@dataclass(frozen=True)
class Cluster:
    """A connection to a scheduler."""

    client: Any
    address: str
    """As the user wrote it."""

    def in_order(
        self, task: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], *arguments: Any
    ) -> Iterator[tuple[Chunk, Any]]:
        """Every chunk with its result; no more under way than keeps all threads busy.

        A job is a chunk and what else is for this one alone; `arguments` are for all.
        """
        self._require_workers()
        ahead = 2 * max(1, sum(self.client.nthreads().values()))
        waiting: deque[tuple[Chunk, Any]] = deque()
        for job in jobs:
            waiting.append((job[0], self.client.submit(task, *job, *arguments, pure=False)))
            if len(waiting) > ahead:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def keep(self, value: Any) -> Any:
        """A value that all tasks need, sent once.

        As the result of a task, not scattered: if the worker that holds it is lost, the scheduler
        has what it takes to make it anew.
        """
        return self.client.submit(_as_it_is, value, pure=False)

    def _next(self, waiting: deque[tuple[Chunk, Any]]) -> tuple[Chunk, Any]:
        chunk, future = waiting.popleft()
        try:
            return chunk, self._result(future)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, ValueError | OSError) and not _is_of_dask(error):
                raise  # of the text, as in a process of our own
            raise ChildProcessError(
                f"--scheduler {self.address}: {chunk.source} at byte {chunk.start} could not be "
                f"prepared by any worker: {_first_line(error)}; is the scheduler still there, and "
                "do all workers have this version of zipflm and enough memory?"
            ) from error

    def _result(self, future: Any) -> Any:
        """What a task returns; ConnectionError if all workers are gone and none comes."""
        while True:
            try:
                return future.result(timeout=_LOOK_FOR_WORKERS_SECONDS)
            except TimeoutError:
                if future.done():  # by then: the result is there, or this is an error of the task
                    return future.result()
            self._require_workers()

    def _require_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS_SECONDS)
        except TimeoutError:
            raise ConnectionError(
                f"--scheduler {self.address}: has no workers after {_WAIT_FOR_WORKERS_SECONDS} "
                "seconds; start some (dask worker)"
            ) from None


def _is_of_dask(error: BaseException) -> bool:
    """A connection that was lost, for example, which is an OSError."""
    return type(error).__module__.startswith(("distributed.", "tornado."))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _as_it_is(value: Any) -> Any:
    return value


@contextmanager
def connected(address: str, processes: int) -> Iterator[Cluster]:
    """A cluster by its scheduler's address, or one of so many processes here if that is `local`.

    Raises ValueError if Dask is not installed, ConnectionError, naming the address, if nobody
    answers there.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise ValueError(
            f"--engine dask: needs {error.name}: pip install dask distributed"
        ) from None
    # Words for a log that nobody keeps here: what concerns a user is raised.
    quiet = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    with dask.config.set(quiet), _silent("distributed", "tornado"):
        if address != LOCAL:
            with _client(distributed, address) as client:
                yield Cluster(client, address)
            return
        with (
            distributed.LocalCluster(
                n_workers=processes,
                threads_per_worker=1,  # splitting text keeps Python's one lock
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                preload=[_LEAVE_CTRL_C_TO_THE_PARENT],
            ) as local,
            distributed.Client(local, set_as_default=False) as client,
        ):
            yield Cluster(client, address)


@contextmanager
def _client(distributed: Any, address: str) -> Iterator[Any]:
    try:
        with ThreadPoolExecutor(1) as thread:  # which has no event loop running, as this one might
            thread.submit(asyncio.run, _greeted(distributed, address)).result()
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except Exception as error:  # nobody there, no address, or what others send read as numbers
        raise ConnectionError(
            f"--scheduler {address}: no Dask scheduler answers there ({_first_line(error)}); "
            "start one (dask scheduler) and give the address it prints, or give local"
        ) from None
    with client:
        yield client


async def _greeted(distributed: Any, address: str) -> None:
    """OSError unless whoever listens there answers as Dask does.

    A client's own time limit ends when the connection is there, and somebody who takes it and says
    nothing would keep the client forever.
    """
    how = distributed.Security().get_connection_args("client")
    greeting = distributed.comm.connect(address, timeout=_CONNECT_SECONDS, **how)
    try:
        comm = await asyncio.wait_for(greeting, _CONNECT_SECONDS + 1)
    except TimeoutError:
        raise TimeoutError("it is connected to, and says nothing") from None
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
