"""Scanning and encoding as tasks of a Dask cluster, for texts that are too much for one machine.

A task is a pure function of a chunk of text: the first kind counts its words, the second kind, when
the vocabulary is known, reads it again and looks them up. Workers keep nothing in between and write
no file, so no file system has to be shared but what the texts are on, and the memory of the cluster
is that of the chunks under way. That costs reading and splitting every text twice, which is what
there are many workers for. A hash of every chunk tells whether a text is still what it was the
first time.

Results are written here: a chunk as numbers of its own words and what each of these became, some 3
bytes a token.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipflm import __version__
from zipflm.config import Splitting
from zipflm.data.bpe import Codes
from zipflm.data.cluster import Cluster
from zipflm.data.counting import WordBlock, WordCounts
from zipflm.data.encoding import EncodedChunk, encode_chunk
from zipflm.data.remote import is_url
from zipflm.data.scan import LINE_END, Errors, Progress, Rename, id_width, numbered_words
from zipflm.data.text import UTF_8, Chunk, chunks, is_stored, shown
from zipflm.data.vocabulary import Vocabulary

CHUNK_BYTES = 1 << 24
"""Of text in a task: enough that a task's millisecond in the scheduler does not matter."""


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
        self.num_tokens: int = 0
        self.num_sentences: int = 0
        self.num_unsplit: int = 0
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
