"""Service limits, queued jobs and their results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from zipflm.evaluation.documents import DocumentScores
from zipflm.language.next_words import LikelyWord

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests, batches and the queue."""

    max_batch_tokens: int = 8192
    """Tokens per batch, including padding. A longer text gets its own batch."""
    max_text_tokens: int = 4096
    """Tokens per text, including the tokens to generate."""
    max_waiting: int = 256
    """Maximum number of jobs in the queue. A request has one job, or two if its prompts are also
    scored."""

    @property
    def max_characters(self) -> int:
        """Maximum length of a text, checked before it is tokenized."""
        return 1_000 + 16 * self.max_text_tokens

    @property
    def max_body(self) -> int:
        """Maximum size of a request body in bytes."""
        return 65_536 + 64 * self.max_text_tokens


class Job(Generic[_T]):
    """The texts of a request that the model thread scores or generates."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[_T | Exception] = asyncio.Queue()
        """Results from the model thread, read by the event loop."""
        self.is_cancelled = False
        """True if the client disconnected or received its response. Later results are dropped."""
        self.has_started = False
        """True if the job is no longer in the queue."""

    def put(self, event: _T | Exception) -> None:
        """Add a result. Call this only from the event loop's thread."""
        if not self.is_cancelled:
            self.events.put_nowait(event)

    async def next(self) -> _T:
        """Wait for the next result, and raise it if it is an exception."""
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event


class Scored(NamedTuple):
    """Scores of one text of a request."""

    text_index: int
    """Index of the text in the request."""
    scores: DocumentScores
    searched: list[list[LikelyWord]]
    """The most likely words at each requested position. Empty for word models, where they are in
    `scores`."""
