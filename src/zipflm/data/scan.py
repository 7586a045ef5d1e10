"""Read a text in one pass, in several processes, and number the words of each chunk.

Splitting text and looking up words is slow, so it happens once: the words of a chunk are numbered
in order of appearance, and a NumPy gather converts the numbers to ids once the vocabulary is known.
Workers share no state, so the result does not depend on the number of workers.

Tokens separated by whitespace are numbered first, as bytes. A rule that splits further
(`data.splitting`) is applied to each distinct token once per chunk.
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
from zipflm.data.text import CHUNK_BYTES, UTF_8, Chunk, chunks

Errors = Literal["strict", "replace"]
Progress = Callable[[int], None]
ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the current task, the number of bytes, tokens or hypotheses just done, and the total
if known. An exception raised by the callback stops the task."""

Rename = Callable[[list[str]], list[str]]
"""Replaces the words of a chunk with other names."""

LINE_END = "\0"
"""The word that marks the end of a line. `clean` ensures that texts do not contain NUL."""

_Word = TypeVar("_Word", str, bytes)
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class ScannedChunk:
    """The numbered words of a chunk, as returned by a worker."""

    words: str
    """The distinct words, `LINE_END` first, joined by spaces."""
    indices: NDArray[Any]
    """The chunk as indices into `words`, in the smallest integer type."""


Task = Callable[[Chunk], ScannedChunk]
MapInOrder = Callable[[Task, Iterator[Chunk]], Iterator[tuple[Chunk, ScannedChunk]]]
"""Runs a task on every chunk and yields chunks and results in the order of the text."""


class Scan:
    """A scanned split: its distinct words in memory, its chunks in a file."""

    def __init__(self, spool: Path, rename: Rename | None = None) -> None:
        """`spool` is the file for the chunks; the caller removes it."""
        self._spool, self._rename = spool, rename
        self._index: defaultdict[str, int] = _numbering(LINE_END)
        self._counts = np.zeros(1, dtype=np.int64)
        self._shapes: list[tuple[int, int, np.dtype[Any]]] = []

    def add(self, chunk: ScannedChunk) -> None:
        """Append a chunk and number its words across the split."""
        words = chunk.words.split(" ")
        if self._rename is not None:
            words = [LINE_END, *self._rename(words[1:])]
        numbers = np.fromiter(map(self._index.__getitem__, words), np.uint32, len(words))
        if len(self._index) > len(self._counts):
            missing = 2 * len(self._index) - len(self._counts)
            self._counts = np.append(self._counts, np.zeros(missing, dtype=np.int64))
        self._counts[numbers] += np.bincount(chunk.indices, minlength=len(numbers))
        with open(self._spool, "ab") as file:
            file.write(numbers.data)  # np.save reports a full disk without its error code
            file.write(chunk.indices.data)
        self._shapes.append((len(numbers), len(chunk.indices), chunk.indices.dtype))

    @property
    def words(self) -> list[str]:
        """The distinct words by number. Word 0 is `LINE_END`."""
        return list(self._index)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Count of each distinct word."""
        return self._counts[: len(self._index)]

    def word_counts(self) -> dict[str, int]:
        """Return the count of each distinct word, without line ends."""
        return dict(zip(self.words[1:], self.counts[1:].tolist(), strict=True))

    @property
    def num_tokens(self) -> int:
        """Number of words and line ends."""
        return int(self.counts.sum())

    @property
    def num_sentences(self) -> int:
        return int(self.counts[0])

    def chunks(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        """Yield the word numbers of each chunk, and its tokens as indices into these.

        The two steps keep the lookup per token in the CPU cache.
        """
        with open(self._spool, "rb") as file:
            for num_words, num_indices, dtype in self._shapes:
                numbers = np.fromfile(file, np.uint32, num_words)
                yield numbers, np.fromfile(file, dtype, num_indices)


def scan(
    names: Iterable[str],
    into: Scan,
    map_in_order: MapInOrder,
    *,
    errors: Errors = "strict",
    encoding: str = UTF_8,
    splitting: Splitting = PLAIN,
    progress: Progress = lambda consumed: None,
) -> None:
    """Scan sources in order and append them to `into`."""
    task = partial(scan_chunk, errors=errors, splitting=splitting)
    all_chunks = chain.from_iterable(
        chunks(name, CHUNK_BYTES, encoding=encoding, errors=errors) for name in names
    )
    for chunk, scanned in map_in_order(task, all_chunks):
        into.add(scanned)
        progress(chunk.consumed)


def scan_chunk(chunk: Chunk, errors: Errors, splitting: Splitting = PLAIN) -> ScannedChunk:
    """Number the words of a chunk."""
    data = clean(chunk, chunk.read(), errors)
    words, numbers = _number(data)
    try:
        joined = words.decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid_utf8(chunk) from None
    if joined.split() != joined.split(" "):
        # Rare: whitespace that bytes.split() does not split at, such as U+00A0.
        words, numbers = _number(_plain_spaces(data))
        joined = words.decode("utf-8")
    if not splitting.is_plain:
        joined, numbers = _split_tokens(joined.split(" "), numbers, _splitter(splitting))
    return ScannedChunk(joined, numbers.astype(np.min_scalar_type(numbers.max())))


def _numbering(first: _Word) -> defaultdict[_Word, int]:
    """Return a dict that assigns the next number to each new word. `first` has number 0."""
    table = defaultdict[_Word, int](count().__next__)
    assert table[first] == 0
    return table


def _number(data: bytes) -> tuple[bytes, NDArray[np.uint32]]:
    """Return the distinct words, joined by spaces, and the number of every word.

    Works on bytes: splitting a str with any character beyond Latin-1 takes twice as long.
    """
    words = data.replace(b"\n", f" {LINE_END} ".encode()).split()
    table = _numbering(LINE_END.encode())
    numbers = np.fromiter(map(table.__getitem__, words), np.uint32, len(words))
    return b" ".join(table), numbers


def _split_tokens(
    tokens: list[str], numbers: NDArray[np.uint32], splitter: Splitter
) -> tuple[str, NDArray[np.uint32]]:
    """Convert numbered tokens, the first of which is `LINE_END`, to numbered words."""
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
    """Concatenate segments of `flat`. Also return the position after each segment."""
    ends = np.cumsum(lengths)
    first = np.repeat(starts - (ends - lengths), lengths)
    return flat[first + np.arange(len(first))], ends


@lru_cache(maxsize=1)  # one per process, because it caches tokens
def _splitter(splitting: Splitting) -> Splitter:
    return Splitter(splitting)


def _plain_spaces(data: bytes) -> bytes:
    lines = data.decode("utf-8").split("\n")
    return "\n".join(" ".join(line.split()) for line in lines).encode()


def clean(chunk: Chunk, data: bytes, errors: Errors) -> bytes:
    """Return the text with `\\n` after every line, including the last, and no byte order mark.

    With `errors="strict"`, a NUL byte raises ValueError; UTF-8 is not checked. With `replace`, NUL
    and invalid UTF-8 become U+FFFD.
    """
    if (nul := data.find(0)) >= 0 and errors == "strict":
        raise _invalid_bytes(chunk, nul, "a NUL byte")
    if errors == "replace":
        data = data.decode("utf-8", "replace").replace(LINE_END, "\ufffd").encode()
    if chunk.start == 0:
        data = data.removeprefix(codecs.BOM_UTF8)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data if data.endswith(b"\n") else data + b"\n"


def _invalid_utf8(chunk: Chunk) -> ValueError:
    try:
        chunk.read().decode("utf-8")
    except UnicodeDecodeError as error:
        return _invalid_bytes(chunk, error.start, "not UTF-8")
    raise AssertionError("words are invalid in a valid text")


def _invalid_bytes(chunk: Chunk, position: int, problem: str) -> ValueError:
    return ValueError(
        f"{chunk.source}: {problem} at byte {chunk.start + position}; decompress it, name its "
        "encoding (--encoding latin-1, cp1252, utf-16, ...), fix the text, or use --errors replace"
    )


def ahead(items: Iterator[_Item], count: int) -> Iterator[_Item]:
    """Yield items in order, each after `count` more have been taken from the iterator."""
    waiting = deque(islice(items, count))
    for item in items:
        waiting.append(item)
        yield waiting.popleft()
    yield from waiting


def map_in_processes(
    task: Task, chunks: Iterator[Chunk], processes: int
) -> Iterator[tuple[Chunk, ScannedChunk]]:
    """Run a task in worker processes, as a `MapInOrder`, with few chunks pending at a time."""
    # Process a single chunk here: starting processes takes seconds.
    first_two = list(islice(chunks, 2))
    chunks = chain(first_two, chunks)
    if processes == 1 or len(first_two) < 2:
        yield from ((chunk, task(chunk)) for chunk in chunks)
        return
    # Not fork: this process may have threads (a progress bar, torch).
    spawn = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_init_worker) as pool:
        try:
            submitted = ((chunk, _submit(pool, task, chunk)) for chunk in chunks)
            for chunk, future in ahead(submitted, 2 * processes):
                yield chunk, future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker process was killed, perhaps because memory ran out; try a single process"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, task: Task, chunk: Chunk) -> Future[ScannedChunk]:
    """Submit a task. Processes that this starts block SIGINT: the parent handles Ctrl-C."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(task, chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _init_worker() -> None:
    """Exit when the parent exits, even if it is killed."""
    parent = parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def default_processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
