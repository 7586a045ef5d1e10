"""One pass over a text: every chunk becomes numbers of its own words, in several processes.

Splitting text and looking words up is what preparing costs, so it is done once: the words of a
chunk are numbered from 0 in the order of sight; when the vocabulary is known, final ids are one
NumPy gather away. A chunk's table is small enough for the processor's cache, and workers share
nothing, so the result does not depend on their number.

Text is numbered by what white space separates, at the speed of compiled code on bytes. A rule that
splits further (`data.splitting`) sees each of these tokens once per chunk at most, not every time
it occurs; their numbers then become those of their words.
"""

from __future__ import annotations

import codecs
import os
import signal
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, count, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from zipflm.config import PLAIN, Splitting
from zipflm.data.splitting import Splitter
from zipflm.data.text import CHUNK_BYTES, UTF_8, Chunk, chunks, encoding_hint

Errors = Literal["strict", "replace"]
Progress = Callable[[int], None]

Rename = Callable[[list[str]], list[str]]
"""Gives the words of a chunk other names than the text has."""

# The word that stands for the end of a line; NUL cannot come from a text, which is refused with it.
LINE_END = "\0"

_Word = TypeVar("_Word", str, bytes)


@dataclass(frozen=True)
class ScannedChunk:
    """The result of a worker."""

    words: str
    """The chunk's words, the end of a line first, joined by spaces."""
    counts: NDArray[np.int64]
    places: NDArray[Any]
    """The chunk as places among its words, in the smallest integer type."""
    num_unsplit: int
    """Tokens and line ends as white space alone separates them."""


Task = Callable[[Chunk], ScannedChunk]
InOrder = Callable[[Task, Iterator[Chunk]], Iterator[tuple[Chunk, ScannedChunk]]]
"""Runs a task on every chunk, somewhere, and yields the results in the order of the text."""


class Scan:
    """A split that was read once: its different words in memory, its chunks in a file."""

    def __init__(self, spool: Path, rename: Rename | None = None) -> None:
        """`spool` is the file to write; the caller removes it."""
        self._spool, self._rename = spool, rename
        self._index: defaultdict[str, int] = _numbering(LINE_END)
        self._counts = np.zeros(1, dtype=np.int64)
        self._shapes: list[tuple[int, int, np.dtype[Any]]] = []
        self.num_unsplit: int = 0
        """Tokens, line ends among them, before a rule split them further; of published corpora
        these are counted."""

    def add(self, chunk: ScannedChunk) -> None:
        """Number a chunk's words across the split."""
        words = chunk.words.split(" ")
        if self._rename is not None:
            words = [LINE_END, *self._rename(words[1:])]
        numbers = np.fromiter(map(self._index.__getitem__, words), np.uint32, len(words))
        if len(self._index) > len(self._counts):
            missing = 2 * len(self._index) - len(self._counts)
            self._counts = np.append(self._counts, np.zeros(missing, dtype=np.int64))
        self._counts[numbers] += chunk.counts
        self.num_unsplit += chunk.num_unsplit
        with open(self._spool, "ab") as file:
            file.write(numbers.data)
            file.write(chunk.places.data)
        self._shapes.append((len(numbers), len(chunk.places), chunk.places.dtype))

    @property
    def words(self) -> list[str]:
        """The different words by number; number 0 is the end of a line."""
        return list(self._index)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[: len(self._index)]

    def word_counts(self) -> dict[str, int]:
        """The different words and their counts, without line ends."""
        return dict(zip(self.words[1:], self.counts[1:].tolist(), strict=True))

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def num_sentences(self) -> int:
        return int(self.counts[0])

    def chunks(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        """For every chunk the numbers of its words, and the chunk as places among these.

        In two steps, so that the look-up per token stays in the processor's cache.
        """
        with open(self._spool, "rb") as file:
            for num_words, num_places, dtype in self._shapes:
                numbers = np.fromfile(file, np.uint32, num_words)
                yield numbers, np.fromfile(file, dtype, num_places)


def scan(
    names: Iterable[str],
    into: Scan,
    in_order: InOrder,
    *,
    errors: Errors = "strict",
    encoding: str = UTF_8,
    splitting: Splitting = PLAIN,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress = lambda consumed: None,
) -> None:
    """Scan sources in order."""
    task = partial(scan_chunk, errors=errors, splitting=splitting)
    found = chain.from_iterable(
        chunks(name, chunk_bytes, encoding=encoding, errors=errors) for name in names
    )
    for chunk, scanned in in_order(task, found):
        into.add(scanned)
        progress(chunk.consumed)


def scan_chunk(chunk: Chunk, errors: Errors, splitting: Splitting = PLAIN) -> ScannedChunk:
    """Number a chunk's words."""
    data = clean(chunk, chunk.read(), errors)
    words, numbers = _number(data)
    try:
        joined = words.decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid(chunk) from None
    if joined.split() != joined.split(" "):
        # White space beyond ASCII, at which bytes do not split: rare, and worth a second pass.
        words, numbers = _number(_plain_spaces(data))
        joined = words.decode("utf-8")
    num_unsplit = len(numbers)
    if not splitting.is_plain:
        joined, numbers = _split_tokens(joined.split(" "), numbers, _splitter(splitting))
    counts = np.bincount(numbers)
    places = numbers.astype(np.min_scalar_type(len(counts)))
    return ScannedChunk(joined, counts, places, num_unsplit)


def _numbering(first: _Word) -> defaultdict[_Word, int]:
    """A table that gives a word it has not seen the next number; `first` has 0."""
    table = defaultdict[_Word, int](count().__next__)
    assert table[first] == 0
    return table


def _number(data: bytes) -> tuple[bytes, NDArray[np.uint32]]:
    """The distinct words, joined by spaces, and the number of every word.

    On bytes, because splitting text with a single letter beyond Latin-1 takes twice as long.
    """
    words = data.replace(b"\n", f" {LINE_END} ".encode()).split()
    table = _numbering(LINE_END.encode())
    numbers = np.fromiter(map(table.__getitem__, words), np.uint32, len(words))
    return b" ".join(table), numbers


def _split_tokens(
    tokens: list[str], numbers: NDArray[np.uint32], splitter: Splitter
) -> tuple[str, NDArray[np.uint32]]:
    """From numbered tokens, of which the first ends a line, to numbered words."""
    table = _numbering(LINE_END)
    flat, lengths = [0], [1]
    for words in splitter.words_of(tokens[1:]):
        flat += map(table.__getitem__, words)
        lengths.append(len(words))
    spans = np.array(lengths)
    starts = np.cumsum(spans) - spans
    split, _ = concatenated(np.array(flat, np.uint32), starts[numbers], spans[numbers])
    return " ".join(table), split


def concatenated(
    flat: NDArray[np.uint32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Stretches of `flat` one after the other, and the position after each."""
    ends = np.cumsum(lengths)
    first = np.repeat(starts - (ends - lengths), lengths)
    return flat[first + np.arange(len(first))], ends


@lru_cache(maxsize=1)
def _splitter(splitting: Splitting) -> Splitter:
    """One for all chunks that a process scans: it remembers tokens."""
    return Splitter(splitting)


def _plain_spaces(data: bytes) -> bytes:
    lines = data.decode("utf-8").split("\n")
    return "\n".join(" ".join(line.split()) for line in lines).encode()


def clean(chunk: Chunk, data: bytes, errors: Errors) -> bytes:
    """The text with `\\n` after every line, the last one too, and no byte order mark.

    Raises ValueError, naming source and byte, for a NUL; `errors="replace"` puts U+FFFD in place of
    it and of what is not UTF-8.
    """
    if (nul := data.find(0)) >= 0 and errors == "strict":
        raise _bad(chunk, data, nul, "a NUL byte")
    if errors == "replace":
        data = data.decode("utf-8", "replace").replace(LINE_END, "\ufffd").encode()
    if chunk.start == 0:
        data = data.removeprefix(codecs.BOM_UTF8)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data if data.endswith(b"\n") else data + b"\n"


def _invalid(chunk: Chunk) -> ValueError:
    data = chunk.read()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _bad(chunk, data, error.start, "not UTF-8")
    raise AssertionError("words are invalid in a valid text")


def _bad(chunk: Chunk, data: bytes, position: int, what: str) -> ValueError:
    return ValueError(
        f"{chunk.source}: {what} at byte {chunk.start + position}; {encoding_hint(data)}, mend the "
        "text, or go on with --errors replace"
    )


def in_processes(
    task: Task, chunks: Iterator[Chunk], processes: int
) -> Iterator[tuple[Chunk, ScannedChunk]]:
    """An `InOrder`; few enough chunks are under way that memory stays bounded."""
    # A single chunk is work for this process: starting others takes seconds.
    first = list(islice(chunks, 2))
    chunks = chain(first, chunks)
    if processes == 1 or len(first) < 2:
        yield from ((chunk, task(chunk)) for chunk in chunks)
        return
    # Not fork: the parent may hold threads (a progress bar, an interpreter that loaded torch).
    spawn = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_attend) as pool:
        waiting: deque[tuple[Chunk, Future[ScannedChunk]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(task, chunk)))
                if len(waiting) > 2 * processes:
                    chunk, future = waiting.popleft()
                    yield chunk, future.result()
            for chunk, future in waiting:
                yield chunk, future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker process was killed, perhaps for want of memory; try --processes 1"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _attend() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when the parent is gone, even killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def default_processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
