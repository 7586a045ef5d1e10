"""The model thread: everything that computes, for all requests and all models.

Requests arrive from the event loop and wait here. The thread takes turns: one batch of texts to be
scored, as many as have arrived and fit, then one step of every text that is being written. So new
requests join within a step, and neither kind of work starves the other. Results go back to the
event loop once per turn.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from zipflm.serving.errors import Refusal
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import ServedModel, with_batch_words
from zipflm.serving.scoring import Document, DocumentScores, score_documents

_LONGEST_WAIT = 30
"""Seconds after which a refused client is told to come back, at most."""

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

    def __post_init__(self) -> None:
        for name in ("max_batch_words", "max_words", "max_waiting"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} {getattr(self, name)}: must be at least 1")

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
        self.accepted = time.monotonic()

    def tell(self, event: _T | Exception) -> None:
        """For the event loop's thread."""
        if not self.is_left:
            self.events.put_nowait(event)

    async def next(self) -> _T:
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event


@dataclass(eq=False)
class _Waiting:
    """One text to be scored."""

    model: ServedModel
    document: Document
    ticket: Ticket[tuple[int, DocumentScores]]
    place: int
    """Among the texts of its request."""


class Worker:
    """Computes for requests; made and asked in the event loop's thread."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.limits, self._metrics = limits, metrics
        self._engines = {
            model.name: with_batch_words(model, limits.max_batch_words) for model in models
        }
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()
        self._scores: deque[_Waiting] = deque()
        self._tickets: set[Ticket[Any]] = set()
        self._num_waiting = 0
        self._is_closed = self._is_stopped = False
        self._seconds = 0.0
        """A request takes, lately."""
        self._told: list[tuple[Ticket[Any], Any]] = []
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    # --- In the event loop's thread. ---

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def num_unanswered(self) -> int:
        return len(self._tickets)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def score(
        self, model: ServedModel, documents: Sequence[Document]
    ) -> Ticket[tuple[int, DocumentScores]]:
        """Tells (place, scores) of every document, in any order."""
        ticket: Ticket[tuple[int, DocumentScores]] = self._accepted()
        with self._work:
            for place, document in enumerate(documents):
                self._scores.append(_Waiting(model, document, ticket, place))
            self._work.notify()
        return ticket

    def finish(self, ticket: Ticket[Any]) -> None:
        """The request is answered, or its client has gone; to be called once for every ticket."""
        with self._work:
            ticket.is_left = True
            self._tickets.discard(ticket)
            if not ticket.has_begun:
                ticket.has_begun = True
                self._num_waiting -= 1

    def close(self) -> None:
        """Accept nothing more; what was accepted is still done."""
        self._is_closed = True

    def stop(self) -> None:
        with self._work:
            self._is_stopped = True
            self._work.notify()
        self._thread.join()

    def _accepted(self) -> Ticket[Any]:
        if self._is_closed:
            raise Refusal(
                503, "the service is about to end and takes no new requests", code="ending"
            )
        if self._num_waiting >= self.limits.max_waiting:
            raise Refusal(
                429,
                f"{self._num_waiting} requests are waiting already, --max-waiting "
                f"{self.limits.max_waiting}; come again later",
                code="queue_full",
                retry_after=min(max(math.ceil(self._seconds), 1), _LONGEST_WAIT),
            )
        ticket: Ticket[Any] = Ticket()
        self._tickets.add(ticket)
        with self._work:
            self._num_waiting += 1
        return ticket

    # --- In the model thread. ---

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                with self._work:
                    self._work.wait_for(self._has_work)
                    if self._is_stopped:
                        return
                    batch = self._next_batch()
                if batch:
                    self._score(batch)
                self._deliver()

    def _has_work(self) -> bool:
        return self._is_stopped or bool(self._scores)

    def _next_batch(self) -> list[_Waiting]:
        """The texts that have waited longest, all for one model, as many as fit."""
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        words = 0
        while self._scores:
            waiting = self._scores.popleft()
            if waiting.ticket.is_left:
                continue
            if batch and waiting.model is not batch[0].model:
                others.append(waiting)
                continue
            words += len(waiting.document.ids)
            if batch and words > self.limits.max_batch_words:
                self._scores.appendleft(waiting)
                break
            batch.append(waiting)
            self._begin(waiting.ticket)
        self._scores.extendleft(reversed(others))
        return batch

    def _begin(self, ticket: Ticket[Any]) -> None:
        if not ticket.has_begun:
            ticket.has_begun = True
            self._num_waiting -= 1

    def _score(self, batch: list[_Waiting]) -> None:
        engine = self._engines[batch[0].model.name]
        try:
            scores = score_documents(engine, [waiting.document for waiting in batch])
        except Exception as error:
            if len(batch) == 1:
                self._tell(batch[0].ticket, _failure(error))
            else:  # one of them must not take the others with it
                for waiting in batch:
                    self._score([waiting])
            return
        self._metrics.batch("score", len(batch))
        for waiting, result in zip(batch, scores, strict=True):
            self._metrics.words("scored", len(result.nll))
            self._tell(waiting.ticket, (waiting.place, result))

    def _tell(self, ticket: Ticket[Any], event: Any) -> None:
        self._told.append((ticket, event))

    def _deliver(self) -> None:
        told, self._told = self._told, []
        if told:
            self._loop.call_soon_threadsafe(_tell_all, told)


def _tell_all(told: list[tuple[Ticket[Any], Any]]) -> None:
    for ticket, event in told:
        ticket.tell(event)


def _failure(error: Exception) -> Exception:
    return Refusal(500, f"the model failed: {error}", code="model_failed")
