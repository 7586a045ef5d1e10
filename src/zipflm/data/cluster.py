"""Scanning and encoding as tasks of a Dask cluster, for texts that are too much for one machine.

A task is a pure function of a chunk of text: the first kind counts its words, the second kind, when
the vocabulary is known, reads it again and looks them up. Workers keep nothing in between and write
no file. So a worker can be lost at any moment, and its chunks run elsewhere; no file system has to
be shared but what the texts are on; and the memory of the cluster is that of the chunks under way.
That costs reading and splitting every text twice, which is what there are many workers for. A hash
of every chunk tells whether a text is still what it was the first time.

Results come back in the order of the text and are written here: a chunk as numbers of its own words
and what each of these became, some 3 bytes a token. Two chunks a thread are under way, and the rest
wait in their files, so that neither scheduler nor client fills up.

What travels is our own functions, chunks, arrays and words, by Dask's own protocol; no file of
anybody is ever unpickled. A scheduler is trusted with the texts, and whoever may talk to one may
run code on its workers: use TLS addresses outside a network of your own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import threading
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm import __version__
from zipflm.config import Splitting
from zipflm.data.bpe import Codes
from zipflm.data.counting import WordBlock, WordCounts
from zipflm.data.encoding import EncodedChunk, encode_chunk
from zipflm.data.remote import is_url
from zipflm.data.scan import LINE_END, Errors, Progress, Rename, id_width, numbered_words
from zipflm.data.text import UTF_8, Chunk, chunks, is_stored, shown
from zipflm.data.vocabulary import Vocabulary

LOCAL = "local"
"""Instead of an address: a cluster of processes on this machine, for as long as it takes."""

CHUNK_BYTES = 1 << 24
"""Of text in a task: enough that a task's millisecond in the scheduler does not matter."""
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
        raise ValueError(f"--engine dask: needs {error.name}: pip install 'zipflm[dask]'") from None
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


class ClusterScan:
    """One split whose chunks are counted and encoded by the workers of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str],
        folder: Path,
        budget: int | None,
        *,
        errors: Errors = "strict",
        encoding: str = UTF_8,
        splitting: Splitting,
        names_of_items: Sequence[str] | None = None,
        rename: Rename | None = None,
        chunk_bytes: int | None = None,
        progress: Progress = lambda stored_bytes: None,
    ) -> None:
        """Count all words; `folder` takes what does not fit into `budget` bytes of memory.

        `chunk_bytes` of text are a task, `CHUNK_BYTES` unless given: results are taken in here,
        where a chunk of new words takes many times its size.

        `rename` checks words that are to be ids, and calls them by `names_of_items` if any.
        """
        for name in names:
            if not is_stored(name):
                raise ValueError(
                    f"{shown(name)}: can be read once only, and a cluster reads a text twice: save "
                    "it to a file, or leave out --engine dask"
                )
        self._cluster, self._counts = cluster, WordCounts(folder, budget)
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self._text = {"encoding": encoding, "errors": errors}
        self._how = errors, splitting, code_identity()
        self._names_of_items = names_of_items
        # Workers are elsewhere: in another folder, too.
        self._names = [name if is_url(name) else os.path.abspath(name) for name in names]
        self._ranges: dict[str, list[Chunk]] = {}
        self._digests: list[bytes] = []
        self.num_tokens = self.num_sentences = self.num_unsplit = 0
        jobs = ((chunk,) for chunk in self._chunks())
        for chunk, counted in cluster.in_order(count_words, jobs, *self._how):
            self._digests.append(counted.digest)
            words = counted.words.split(" ")[1:]
            self._counts.add(words if rename is None else rename(words), counted.counts[1:])
            self.num_tokens += int(counted.counts.sum())
            self.num_sentences += int(counted.counts[0])
            self.num_unsplit += counted.num_unsplit
            progress(chunk.consumed)

    def settle(self) -> None:
        """Leave the memory that counting takes to the next split."""
        self._counts.settle()

    def word_counts(self) -> Iterator[WordBlock]:
        return self._counts.blocks()

    def encoded(self, vocabulary: Vocabulary, codes: Codes | None) -> Iterator[EncodedChunk]:
        """The chunks in order, read again; ValueError if a text is not what it was."""
        table = self._cluster.keep(
            _Table(
                vocabulary.hash + ("" if codes is None else codes.hash),
                "\n".join(vocabulary.words),
                None if codes is None else codes.merges,
                self._names_of_items,
            )
        )
        for _, encoded in self._cluster.in_order(look_up, self._known_chunks(), table, *self._how):
            yield encoded

    def _known_chunks(self) -> Iterator[tuple[Chunk, bytes]]:
        """The chunks once more, each with the digest that it had when its words were counted."""
        digests, last = iter(self._digests), self._names[-1]
        for chunk in self._chunks():
            digest = next(digests, None)
            if digest is None:
                raise _changed(chunk.source)
            yield chunk, digest
            last = chunk.source
        if next(digests, None) is not None:
            raise _changed(last)

    def _chunks(self) -> Iterator[Chunk]:
        for name in self._names:
            if name in self._ranges:
                yield from self._ranges[name]
                continue
            found: list[Chunk] = []
            for chunk in chunks(name, self._chunk_bytes, **self._text):
                # A stream, such as a compressed file, is read here from its beginning to its end,
                # and is too much to be kept for the second time.
                if chunk.data is None:
                    found.append(chunk)
                yield chunk
            if found:
                self._ranges[name] = found


@dataclass(frozen=True)
class Counted:
    """The words of a chunk, the end of a line first, joined by spaces, with counts."""

    words: str
    counts: NDArray[np.int64]
    num_unsplit: int
    digest: bytes
    """Of the chunk as it was read."""


@dataclass(frozen=True)
class _Table:
    """What workers need in order to look words up."""

    hash: str
    """Of all that follows."""
    words: str
    merges: list[tuple[str, str]] | None
    names_of_items: Sequence[str] | None


def count_words(chunk: Chunk, errors: Errors, splitting: Splitting, code: str) -> Counted:
    """A task: the words of a chunk; `code` is the `code_identity` of whoever asks for it."""
    chunk, digest = _read(chunk, code)
    joined, numbers, num_unsplit = numbered_words(chunk, errors, splitting)
    return Counted(joined, np.bincount(numbers), num_unsplit, digest)


def look_up(
    chunk: Chunk, digest: bytes, table: _Table, errors: Errors, splitting: Splitting, code: str
) -> EncodedChunk:
    """A task: the words of a chunk with their ids; ValueError if it has not that digest."""
    chunk, found = _read(chunk, code)
    if found != digest:
        raise _changed(chunk.source)
    joined, numbers, _ = numbered_words(chunk, errors, splitting)
    words = joined.split(" ")
    places = numbers.astype(f"u{id_width(len(words))}")
    if table.names_of_items is not None:
        words = [LINE_END, *(table.names_of_items[int(word)] for word in words[1:])]
    with _TABLE_LOCK:
        vocabulary, codes = _TABLES.get(table.hash) or _built(table)
        if codes is not None:  # it learns characters as it goes, and threads must not disagree
            return encode_chunk(words, places, vocabulary, codes)
    return encode_chunk(words, places, vocabulary, None)


_TABLES: dict[str, tuple[Vocabulary, Codes | None]] = {}
_TABLE_LOCK = threading.Lock()
"""One table is made per process, by the first of its threads that needs it."""


def _built(table: _Table) -> tuple[Vocabulary, Codes | None]:
    words = table.words.split("\n")
    vocabulary = Vocabulary(words, [0] * len(words))
    codes = None if table.merges is None else Codes(table.merges)
    _TABLES.clear()  # those of earlier folders
    _TABLES[table.hash] = vocabulary, codes
    return vocabulary, codes


def _read(chunk: Chunk, code: str) -> tuple[Chunk, bytes]:
    """A chunk with its text, read once, and the digest of that; an error that says where it could
    not be read, or that this is not the code it is to be read with."""
    if code != code_identity():
        raise ValueError(
            f"the worker on {socket.gethostname()} has another zipflm or Python ({code_identity()})"
            f" than this machine ({code}) and might find other words; install the same everywhere, "
            "and start the workers again"
        )
    try:
        data = chunk.read()
    except OSError as error:
        raise OSError(
            f"{chunk.source}: the worker on {socket.gethostname()} cannot read it "
            f"({error.strerror or error}); put texts where every worker sees them under the same "
            "name, or give URLs (s3://...)"
        ) from None
    return replace(chunk, data=data), hashlib.blake2b(data, digest_size=16).digest()


def _changed(source: str) -> ValueError:
    return ValueError(
        f"{source}: changed between the time its words were counted and the time they were looked "
        "up; try again when nobody writes to it"
    )


@cache
def code_identity() -> str:
    """Equal for two processes only if they find the same words in a text.

    The version alone does not tell: a checkout has it before and after a change. What a letter or
    white space is, Python's edition of Unicode decides.
    """
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    unicode = unicodedata.unidata_version
    return f"{__version__}, code {code.hexdigest()[:12]}, Unicode {unicode}"
