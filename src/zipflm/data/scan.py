"""One pass over a text: every chunk becomes ids of its own words, in several processes.

Splitting text and looking words up is what preparing costs, so it is done once: a chunk gets
provisional ids, counted from 0 in the order of sight, and its list of words; when the vocabulary is
known, final ids are one NumPy gather away. A chunk's table is small enough for the processor's
cache, and workers share nothing, so the result does not depend on their number.

A `Scan` keeps all words of a split in memory, numbered. A `SpooledScan` keeps them on the disk, for
whoever has less memory than words: each chunk's beside its ids, and all of them counted in runs
(`data.counting`). Both give the same.

Text is numbered by what white space separates, at the speed of compiled code on bytes. A rule that
splits further (`data.splitting`) sees each of these tokens once per chunk at most, not every time
it occurs; their numbers then become those of their words.
"""

from __future__ import annotations

import codecs
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from zipflm.config import PLAIN, Splitting
from zipflm.data.counting import WordBlock, WordCounts, WordTable, numbering
from zipflm.data.encoding import (
    EncodedChunk,
    Encoding,
    concatenated,
    encode_chunk,
    word_digests,
)
from zipflm.data.splitting import Splitter
from zipflm.data.text import CHUNK_BYTES, UTF_8, Chunk, chunks, encoding_hint
from zipflm.data.vocabulary import Vocabulary

if TYPE_CHECKING:  # not for processes that only scan, which would load the library behind it
    from zipflm.data.bpe import Codes

Errors = Literal["strict", "replace"]
Progress = Callable[[int], None]

Rename = Callable[[list[str]], list[str]]
"""What the words of a chunk are called, where that is not what the text has."""

# The word that stands for the end of a line; NUL cannot come from a text, which is refused with it.
LINE_END = "\0"


@dataclass(frozen=True)
class ScannedChunk:
    """What a worker sends back; the ids themselves wait in a file."""

    path: Path
    width: int
    """Bytes an id takes in the file."""
    words: str
    """The chunk's words in the order of their provisional ids, joined by spaces."""
    counts: NDArray[np.int64]
    num_unsplit: int
    """Tokens and line ends as white space alone separates them."""


class SplitScan(Protocol):
    """One split that was read once: what its words are, and what its chunks become."""

    num_unsplit: int
    """Tokens, line ends among them, before a rule split them further; of published corpora these
    are counted."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_sentences(self) -> int: ...

    def word_counts(self) -> Iterator[WordBlock]:
        """The different words and their counts, line ends left out."""
        ...

    def encoded(self, vocabulary: Vocabulary, codes: Codes | None) -> Iterator[EncodedChunk]:
        """The chunks in order."""
        ...


class ChunkScan(SplitScan, Protocol):
    """One that is made chunk by chunk."""

    def add(self, chunk: ScannedChunk) -> None:
        """Take in the next chunk."""


class Scan:
    """All words of a split in memory, and its chunks as provisional ids on the disk."""

    def __init__(self, rename: Rename | None = None) -> None:
        self._table, self._rename = WordTable(LINE_END), rename
        self._pieces: list[tuple[Path, int, Path]] = []
        self.num_unsplit: int = 0

    @property
    def num_tokens(self) -> int:
        return int(self._table.counts.sum())

    @property
    def num_sentences(self) -> int:
        return int(self._table.counts[0])

    def add(self, chunk: ScannedChunk) -> None:
        """Take in a chunk: number its words across the split and keep the numbers beside it."""
        numbers = self._table.add(_words_of(chunk, self._rename), chunk.counts)
        self.num_unsplit += chunk.num_unsplit
        numbers_path = chunk.path.with_suffix(".words")
        numbers_path.write_bytes(numbers.tobytes())
        self._pieces.append((chunk.path, chunk.width, numbers_path))

    def word_counts(self) -> Iterator[WordBlock]:
        """In the order of sight, all at once."""
        _, *words = self._table.index
        yield words, self._table.counts[1:]

    def encoded(self, vocabulary: Vocabulary, codes: Codes | None) -> Iterator[EncodedChunk]:
        """Every different word is looked up once, whatever the number of chunks."""
        encoding = Encoding(self._table.index, vocabulary, codes)
        digests = word_digests(self._table.index)
        for path, width, numbers_path in self._pieces:
            places = np.fromfile(path, dtype=f"u{width}")
            numbers = np.fromfile(numbers_path, dtype=np.uint32)
            yield EncodedChunk(encoding, digests, numbers, places)


class SpooledScan:
    """The words of a split on the disk, so that memory does not grow with their number."""

    def __init__(self, folder: Path, budget: int | None, rename: Rename | None = None) -> None:
        """`folder` takes the runs; `budget` is what counting may take of the memory, in bytes."""
        self._counts, self._rename = WordCounts(folder, budget), rename
        self._pieces: list[tuple[Path, int, Path]] = []
        self.num_tokens: int = 0
        self.num_sentences: int = 0
        self.num_unsplit: int = 0

    def add(self, chunk: ScannedChunk) -> None:
        """Take in a chunk: count its words and keep them beside it."""
        words = _words_of(chunk, self._rename)
        self._counts.add(words[1:], chunk.counts[1:])
        self.num_tokens += int(chunk.counts.sum())
        self.num_sentences += int(chunk.counts[0])
        self.num_unsplit += chunk.num_unsplit
        words_path = chunk.path.with_suffix(".words")
        words_path.write_text(" ".join(words), encoding="utf-8", newline="")
        self._pieces.append((chunk.path, chunk.width, words_path))

    def settle(self) -> None:
        """Leave the memory that counting takes to the next split."""
        self._counts.settle()

    def word_counts(self) -> Iterator[WordBlock]:
        return self._counts.blocks()

    def encoded(self, vocabulary: Vocabulary, codes: Codes | None) -> Iterator[EncodedChunk]:
        """Words are looked up anew for every chunk."""
        for path, width, words_path in self._pieces:
            words = words_path.read_bytes().decode().split(" ")
            places = np.fromfile(path, dtype=f"u{width}")
            yield encode_chunk(words, places, vocabulary, codes)


def _words_of(chunk: ScannedChunk, rename: Rename | None) -> list[str]:
    """A chunk's words, the end of a line first."""
    words = chunk.words.split(" ")
    return words if rename is None else [LINE_END, *rename(words[1:])]


def scan(
    names: Iterable[str],
    spool: Path,
    into: ChunkScan,
    *,
    processes: int,
    errors: Errors = "strict",
    encoding: str = UTF_8,
    splitting: Splitting = PLAIN,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress = lambda stored_bytes: None,
) -> None:
    """Scan sources in order; `spool` holds the chunks' ids until they are encoded."""
    task = partial(scan_chunk, errors=errors, splitting=splitting)
    numbered = enumerate(
        chunk
        for name in names
        for chunk in chunks(name, chunk_bytes, encoding=encoding, errors=errors)
    )
    jobs = ((chunk, spool / f"{number:06d}.ids") for number, chunk in numbered)
    for chunk, scanned in _ordered(task, jobs, processes):
        into.add(scanned)
        progress(chunk.consumed)


def scan_chunk(
    chunk: Chunk,
    path: Path,
    errors: Errors,
    splitting: Splitting = PLAIN,
) -> ScannedChunk:
    """Number a chunk's words and write the numbers to `path`."""
    joined, numbers, num_unsplit = numbered_words(chunk, errors, splitting)
    counts = np.bincount(numbers)
    with open(path, "wb") as file:
        file.write(numbers.astype(f"u{id_width(len(counts))}").tobytes())
    return ScannedChunk(path, id_width(len(counts)), joined, counts, num_unsplit)


def id_width(num_words: int) -> int:
    """Bytes that the number of one of so many words takes."""
    return 2 if num_words <= 1 << 16 else 4


def numbered_words(
    chunk: Chunk, errors: Errors, splitting: Splitting
) -> tuple[str, NDArray[np.uint32], int]:
    """A chunk's words, the end of a line first, joined by spaces; the chunk as their numbers; and
    how many tokens and line ends white space alone separates."""
    data = clean(chunk, chunk.read(), errors)
    words, numbers = _number(data)
    try:
        joined = words.decode("utf-8")
    except UnicodeDecodeError:
        raise _invalid(chunk) from None
    if joined.split() != joined.split(" "):
        # White space beyond ASCII, at which bytes do not split: seldom, and worth a second pass.
        words, numbers = _number(_plain_spaces(data))
        joined = words.decode("utf-8")
    num_unsplit = len(numbers)
    if not splitting.is_plain:
        joined, numbers = _split_tokens(joined.split(" "), numbers, _splitter(splitting))
    return joined, numbers, num_unsplit


def _number(data: bytes) -> tuple[bytes, NDArray[np.uint32]]:
    """The distinct words, joined by spaces, and the number of every word.

    On bytes, because splitting text with a single letter beyond Latin-1 takes twice as long.
    """
    words = data.replace(b"\n", f" {LINE_END} ".encode()).split()
    table = numbering(LINE_END.encode())
    numbers = np.fromiter(map(table.__getitem__, words), np.uint32, len(words))
    return b" ".join(table), numbers


def _split_tokens(
    tokens: list[str], numbers: NDArray[np.uint32], splitter: Splitter
) -> tuple[str, NDArray[np.uint32]]:
    """From numbered tokens, of which the first ends a line, to numbered words."""
    table = numbering(LINE_END)
    flat, lengths = [0], [1]
    for words in splitter.words_of(tokens[1:]):
        flat += map(table.__getitem__, words)
        lengths.append(len(words))
    spans = np.array(lengths)
    starts = np.cumsum(spans) - spans
    split, _ = concatenated(np.array(flat, np.uint32), starts[numbers], spans[numbers])
    return " ".join(table), split


@lru_cache(maxsize=1)
def _splitter(splitting: Splitting) -> Splitter:
    """One for all chunks that a process scans: it remembers tokens."""
    return Splitter(splitting)


def _plain_spaces(data: bytes) -> bytes:
    lines = data.decode("utf-8").split("\n")
    return "\n".join(" ".join(line.split()) for line in lines).encode()


def clean(chunk: Chunk, data: bytes, errors: Errors) -> bytes:
    """The text with `\\n` behind every line, the last one too, and no byte order mark.

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


Job = tuple[Chunk, Path]


def _ordered(
    task: Callable[[Chunk, Path], ScannedChunk], jobs: Iterable[Job], processes: int
) -> Iterator[tuple[Chunk, ScannedChunk]]:
    """Results in the order of the jobs; few enough under way that memory stays bounded."""
    if processes == 1:
        yield from ((chunk, task(chunk, path)) for chunk, path in jobs)
        return
    # Not fork: the parent may hold threads (a progress bar, an interpreter that loaded torch).
    spawn = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_attend) as pool:
        try:
            yield from _sliding(pool, task, jobs, 2 * processes)
        except BrokenProcessPool:
            raise ChildProcessError(
                "a worker process was killed, perhaps for want of memory; try --processes 1"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _sliding(
    pool: Executor,
    task: Callable[[Chunk, Path], ScannedChunk],
    jobs: Iterable[Job],
    ahead: int,
) -> Iterator[tuple[Chunk, ScannedChunk]]:
    waiting: deque[tuple[Chunk, Future[ScannedChunk]]] = deque()
    for job in jobs:
        waiting.append((job[0], pool.submit(task, *job)))
        if len(waiting) > ahead:
            chunk, future = waiting.popleft()
            yield chunk, future.result()
    for chunk, future in waiting:
        yield chunk, future.result()


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
