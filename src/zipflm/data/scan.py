"""One pass over a text: every chunk becomes ids of its own words, in several processes.

Splitting text and looking words up is what preparing costs, so it is done once: a chunk gets
provisional ids, counted from 0 in the order of sight, and its list of words; when the vocabulary is
known, final ids are one NumPy gather away. A chunk's table is small enough for the processor's
cache, and workers share nothing, so the result does not depend on their number.

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
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from zipflm.config import PLAIN, Splitting
from zipflm.data.encoding import concatenated
from zipflm.data.splitting import Splitter
from zipflm.data.text import UTF_8, Chunk, chunks, encoding_hint

Errors = Literal["strict", "replace"]
Progress = Callable[[int], None]

Word = TypeVar("Word", str, bytes)

# The word that stands for the end of a line; NUL cannot come from a text, which is refused with it.
LINE_END = "\0"


def numbering(line_end: Word) -> defaultdict[Word, int]:
    """A table that gives a word it has not seen the next number; the end of a line has 0."""
    table = defaultdict[Word, int](count().__next__)
    assert table[line_end] == 0
    return table


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


@dataclass
class Scan:
    """One split: its words with counts, and its chunks as provisional ids."""

    index: defaultdict[str, int] = field(default_factory=lambda: numbering(LINE_END))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    pieces: list[tuple[Path, int, Path]] = field(default_factory=list)
    num_unsplit: int = 0
    """Tokens, line ends among them, before a rule split them further; of published corpora these
    are counted."""

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def num_sentences(self) -> int:
        return int(self.counts[0])

    def words(self) -> dict[str, int]:
        """Counts of the words, line ends left out."""
        counts = self.counts[: len(self.index)].tolist()
        words = dict(zip(self.index, counts, strict=True))
        del words[LINE_END]
        return words

    def add(self, chunk: ScannedChunk) -> None:
        """Take in a chunk: number its words across the split and keep the numbers beside it."""
        words = chunk.words.split(" ")
        numbers = np.fromiter(map(self.index.__getitem__, words), np.uint32, len(words))
        if len(self.index) > len(self.counts):
            missing = 2 * len(self.index) - len(self.counts)
            self.counts = np.append(self.counts, np.zeros(missing, dtype=np.int64))
        self.counts[numbers] += chunk.counts
        self.num_unsplit += chunk.num_unsplit
        numbers_path = chunk.path.with_suffix(".words")
        numbers_path.write_bytes(numbers.tobytes())
        self.pieces.append((chunk.path, chunk.width, numbers_path))

    def provisional(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint32]]]:
        """Per chunk, ids into its words, and the split-wide number of each of those words."""
        for path, width, numbers_path in self.pieces:
            ids = np.fromfile(path, dtype=f"u{width}")
            yield ids, np.fromfile(numbers_path, dtype=np.uint32)


def scan(
    names: Iterable[str],
    spool: Path,
    *,
    processes: int,
    errors: Errors = "strict",
    encoding: str = UTF_8,
    splitting: Splitting = PLAIN,
    progress: Progress = lambda stored_bytes: None,
) -> Scan:
    """Scan sources in order; `spool` holds the chunks' ids until they are encoded."""
    result = Scan()
    task = partial(scan_chunk, errors=errors, splitting=splitting)
    numbered = enumerate(
        chunk for name in names for chunk in chunks(name, encoding=encoding, errors=errors)
    )
    jobs = ((chunk, spool / f"{number:06d}.ids") for number, chunk in numbered)
    for chunk, scanned in _ordered(task, jobs, processes):
        result.add(scanned)
        progress(chunk.consumed)
    return result


def scan_chunk(
    chunk: Chunk,
    path: Path,
    errors: Errors,
    splitting: Splitting = PLAIN,
) -> ScannedChunk:
    """Number a chunk's words and write the numbers to `path`."""
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
    counts = np.bincount(numbers)
    width = 2 if len(counts) <= 1 << 16 else 4
    with open(path, "wb") as file:
        file.write(numbers.astype(f"u{width}").tobytes())
    return ScannedChunk(path, width, joined, counts, num_unsplit)


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
    try:
        (data := chunk.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        return _bad(chunk, data, error.start, "not UTF-8")
    raise AssertionError("words are invalid in a valid text")


def _bad(chunk: Chunk, data: bytes, position: int, what: str) -> ValueError:
    return ValueError(
        f"{chunk.source}: {what} at byte {chunk.start + position}; {encoding_hint(data)}, mend the "
        "text, or go on with zipflm prepare --errors replace"
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
