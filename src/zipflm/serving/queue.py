"""Limits of the service, places of requests in its queue, and the events they receive."""

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
    """How much is taken on."""

    max_batch_words: int = 8192
    """Words that go through a model together, padding included; a longer text goes alone."""
    max_words: int = 4096
    """Of one text, with what is to be written behind it."""
    max_waiting: int = 256
    """Requests that may wait for their turn."""

    @property
    def max_characters(self) -> int:
        """Maximum length of one text, checked before its words are counted."""
        return 1_000 + 16 * self.max_words

    @property
    def max_body(self) -> int:
        """Bytes of a request: enough for so many words, and no more to read than that."""
        return 65_536 + 64 * self.max_words


class Ticket(Generic[_T]):
    """A request's place in the service, from when it is accepted until it is answered or left."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[_T | Exception] = asyncio.Queue()
        """What the model thread has to say; read by the event loop."""
        self.is_left = False
        """The client went away: whatever is not computed yet need not be."""
        self.has_begun = False

    def tell(self, event: _T | Exception) -> None:
        """For the event loop's thread."""
        if not self.is_left:
            self.events.put_nowait(event)

    async def next(self) -> _T:
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event


class Scored(NamedTuple):
    """One text of a request is scored."""

    place: int
    """Among the request's texts."""
    scores: DocumentScores
    searched: list[list[LikelyWord]]
    """Per place that was asked about, the words that a search found."""


class Written(NamedTuple):
    """There is more of one text of a request."""

    place: int
    delta: Delta
