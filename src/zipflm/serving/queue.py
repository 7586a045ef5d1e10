"""Limits of the service, queued jobs and their events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from zipflm.evaluation.documents import DocumentScores
from zipflm.language.decoding import Delta
from zipflm.language.next_words import LikelyWord

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests and batches."""

    max_batch_words: int = 8192
    """Words per batch, including padding; a longer text is a batch of its own."""
    max_words: int = 4096
    """Words of one text, including the words to generate."""
    max_waiting: int = 256
    """Requests in the queue."""

    @property
    def max_characters(self) -> int:
        """Maximum length of one text, checked before its words are counted."""
        return 1_000 + 16 * self.max_words

    @property
    def max_body(self) -> int:
        """Maximum size of a request body in bytes."""
        return 65_536 + 64 * self.max_words


class Job(Generic[_T]):
    """The work of one request for the model thread."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[_T | Exception] = asyncio.Queue()
        """Results from the model thread, read by the event loop."""
        self.is_cancelled = False
        """True if the client disconnected or has its response."""
        self.has_started = False

    def put(self, event: _T | Exception) -> None:
        """Call in the thread of the event loop."""
        if not self.is_cancelled:
            self.events.put_nowait(event)

    async def next(self) -> _T:
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event


class Scored(NamedTuple):
    """The scores of one text of a request."""

    place: int
    """Index of the text in the request."""
    scores: DocumentScores
    searched: list[list[LikelyWord]]
    """The most likely words at each requested place, for sub-word models."""


class Generated(NamedTuple):
    """New tokens of one text of a request."""

    place: int
    delta: Delta
