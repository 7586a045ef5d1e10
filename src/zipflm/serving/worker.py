"""The model thread: everything that computes, for all requests and all models.

Requests arrive from the event loop and wait here. The thread takes turns: one batch of texts to be
scored, as many as have arrived and fit, then one step of every text that is being written. So new
requests join within a step, and neither kind of work starves the other. Results go back to the
event loop once per turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from zipflm.evaluation.documents import Document, DocumentScores
from zipflm.language.decoding import Delta, GrowingText, TextDecoder
from zipflm.language.engine import Engine
from zipflm.language.next_words import LikelyWord, most_likely_instead
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import ServedModel
from zipflm.serving.queue import Limits, Scored, Ticket, Written
from zipflm.serving.schemas import Refusal

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Text:
    """One text to be scored."""

    model: ServedModel
    document: Document
    search: int
    """For so many words in pieces at each place that is asked about."""
    ticket: Ticket[Scored]
    place: int
    scores: DocumentScores | None = None
    searched: list[list[LikelyWord]] = field(default_factory=list)


@dataclass(eq=False)
class _Writing:
    """One text to be written."""

    model: ServedModel
    row: GrowingText
    is_streamed: bool
    """Whether it is told word by word."""
    ticket: Ticket[Written]
    place: int


class Places:
    """How many rows fit beside each other: as many as the longest leaves room for."""

    def __init__(self, engine: Engine, rows: Iterable[GrowingText]) -> None:
        self._engine = engine
        rooms = [row.room(engine) for row in rows]
        self._number, self._longest = len(rooms), max(rooms, default=0)

    def take(self, row: GrowingText) -> bool:
        """Whether one more fits, which then has its place; the first one always does."""
        number, longest = self._number + 1, max(self._longest, row.room(self._engine))
        if number > 1 and number * longest > self._engine.batch_tokens:
            return False
        self._number, self._longest = number, longest
        return True


class Worker:
    """Computes for requests; made and asked in the event loop's thread."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.limits: Limits = limits
        self._metrics = metrics
        self._models = {model.name: model for model in models}
        self._engines = {
            model.name: replace(model.engine, batch_tokens=limits.max_batch_words)
            for model in models
        }
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()
        """Held by whoever touches the queues and counts below."""
        self._scores: deque[_Text] = deque()
        self._rows: deque[_Writing] = deque()
        self._num_waiting = 0
        self._is_stopped = False
        # The event loop's alone.
        self._tickets: set[Ticket[Any]] = set()
        self._is_closed = False
        # The model thread's alone.
        self._searches: deque[_Text] = deque()
        self._decoders = {model.name: self._new_decoder(model) for model in models}
        self._writings: dict[GrowingText, _Writing] = {}
        self._told: list[tuple[Ticket[Any], Any]] = []
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def _new_decoder(self, model: ServedModel) -> TextDecoder:
        return TextDecoder(self._engines[model.name], model.lm.reader)

    # --- In the event loop's thread. ---

    @property
    def num_waiting(self) -> int:
        """Requests whose turn has not come."""
        return self._num_waiting

    @property
    def num_unanswered(self) -> int:
        """Requests that were accepted and have no answer yet."""
        return len(self._tickets)

    @property
    def num_writing(self) -> int:
        """Texts that are being written."""
        return len(self._writings)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def score(
        self, model: ServedModel, documents: Sequence[Document], search: int = 0
    ) -> Ticket[Scored]:
        """Tells of every document, in any order; Refusal if there is no place for the request.

        With `search` so many words, whatever pieces they are made of, are looked for at every place
        that is asked about.
        """
        ticket: Ticket[Scored] = self._accepted()
        with self._work:
            for place, document in enumerate(documents):
                self._scores.append(_Text(model, document, search, ticket, place))
            self._work.notify()
        return ticket

    def write(
        self, model: ServedModel, rows: Sequence[GrowingText], *, is_streamed: bool = False
    ) -> Ticket[Written]:
        """Tells of every row: once, when it is complete, or whenever there is more of it."""
        ticket: Ticket[Written] = self._accepted()
        with self._work:
            for place, row in enumerate(rows):
                self._rows.append(_Writing(model, row, is_streamed, ticket, place))
            self._work.notify()
        return ticket

    def finish(self, ticket: Ticket[Any]) -> None:
        """The request is answered, or its client has gone; to be called for every ticket."""
        if ticket not in self._tickets:
            return
        self._tickets.discard(ticket)
        ticket.is_left = True
        with self._work:
            self._begin(ticket)

    def close(self) -> None:
        """Accept nothing more; what was accepted is still done."""
        self._is_closed = True

    def stop(self) -> None:
        """Leave everything and end the thread."""
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
                f"{self._num_waiting} requests are waiting already (--max-waiting); come again "
                "later",
                code="queue_full",
                headers={"Retry-After": "1"},
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
                try:
                    self._turn()
                except Exception as error:  # the thread must go on, whatever happens
                    for name in self._models:
                        self._give_up(name, error)
                self._deliver()

    def _turn(self) -> None:
        for decoder in self._decoders.values():
            left = [row for row in decoder.rows if self._writings[row].ticket.is_left]
            for row in left:
                del self._writings[row]
            decoder.leave(left)
        with self._work:
            batch = self._next_batch()
            joining = self._next_rows()
        if batch:
            self._score(batch)
        if self._searches:
            self._search(self._searches.popleft())
        for name, decoder in self._decoders.items():
            self._step(name, decoder, joining.get(name, []))

    def _has_work(self) -> bool:
        waiting = self._scores or self._rows or self._searches or self._writings
        return self._is_stopped or bool(waiting)

    def _begin(self, ticket: Ticket[Any]) -> None:
        if not ticket.has_begun:
            ticket.has_begun = True
            self._num_waiting -= 1

    def _next_batch(self) -> list[_Text]:
        """The texts that have waited longest, all for one model, as many as fit."""
        batch: list[_Text] = []
        others: list[_Text] = []
        words = 0
        while self._scores:
            text = self._scores.popleft()
            if text.ticket.is_left:
                continue
            if batch and text.model is not batch[0].model:
                others.append(text)
                continue
            words += len(text.document.ids)
            if batch and words > self.limits.max_batch_words:
                self._scores.appendleft(text)
                break
            batch.append(text)
            self._begin(text.ticket)
        self._scores.extendleft(reversed(others))
        return batch

    def _next_rows(self) -> dict[str, list[_Writing]]:
        """Texts that can join those that are being written, by model; first come, first served."""
        joining: dict[str, list[_Writing]] = defaultdict(list)
        others: list[_Writing] = []
        # Of the models that are not full: thousands may wait, and are not looked at every time.
        places = {
            name: Places(self._engines[name], decoder.rows)
            for name, decoder in self._decoders.items()
        }
        while self._rows and places:
            writing = self._rows.popleft()
            name = writing.model.name
            if writing.ticket.is_left:
                continue
            if name not in places or not places[name].take(writing.row):
                places.pop(name, None)
                others.append(writing)
                continue
            joining[name].append(writing)
            self._begin(writing.ticket)
        self._rows.extendleft(reversed(others))
        return joining

    def _score(self, batch: list[_Text]) -> None:
        engine = self._engines[batch[0].model.name]
        try:
            scores = engine.start_scoring([text.document for text in batch])()
        except Exception as error:
            if len(batch) == 1:
                self._tell(batch[0].ticket, _failure(error))
            else:  # one of them must not take the others with it
                for text in batch:
                    self._score([text])
            return
        self._metrics.batches.labels("score").observe(len(batch))
        self._metrics.words.labels("scored").inc(sum(len(result.nll) for result in scores))
        for text, result in zip(batch, scores, strict=True):
            text.scores = result
            self._tell_or_search(text)

    def _tell_or_search(self, text: _Text) -> None:
        if text.search and len(text.searched) < len(text.document.asked):
            self._searches.append(text)
        else:
            assert text.scores is not None
            self._tell(text.ticket, Scored(text.place, text.scores, text.searched))

    def _search(self, text: _Text) -> None:
        """At one place of a text, so that others get their turn in between."""
        if text.ticket.is_left:
            return
        document, number = text.document, len(text.searched)
        try:
            text.searched += most_likely_instead(
                self._engines[text.model.name],
                text.model.lm.reader,
                document.ids,
                document.asked[number : number + 1],
                text.search,
                document.skip,
            )
        except Exception as error:
            self._tell(text.ticket, _failure(error))
        else:
            self._tell_or_search(text)

    def _step(self, name: str, decoder: TextDecoder, joining: list[_Writing]) -> None:
        """New texts join, then all get one id more."""
        self._writings |= {writing.row: writing for writing in joining}
        try:
            if joining:
                decoder.join([writing.row for writing in joining])
            if not decoder.rows:
                return
            beside = list(decoder.rows)
            decoder.step()
        except Exception as error:
            self._give_up(name, error)
            return
        self._metrics.batches.labels("write").observe(len(beside))
        self._metrics.words.labels("written").inc(len(beside))
        for row in beside:
            writing = self._writings[row]
            is_complete = row.finish_reason is not None
            if is_complete:
                del self._writings[row]
            if is_complete or writing.is_streamed:
                self._tell(writing.ticket, Written(writing.place, _delta(row)))

    def _give_up(self, name: str, error: Exception) -> None:
        """All texts that a model is writing, and what it remembers of them."""
        failure = _failure(error)
        for writing in list(self._writings.values()):
            if writing.model.name == name:
                del self._writings[writing.row]
                self._tell(writing.ticket, failure)
        self._decoders[name] = self._new_decoder(self._models[name])

    def _tell(self, ticket: Ticket[Any], event: Any) -> None:
        self._told.append((ticket, event))

    def _deliver(self) -> None:
        told, self._told = self._told, []
        if told:
            self._loop.call_soon_threadsafe(_tell_all, told)


def _delta(row: GrowingText) -> Delta:
    """What there is to show, without the line end that ends a text."""
    delta = row.take()
    if delta.finish_reason == "lines":
        delta.text, delta.finish_reason = delta.text.removesuffix("\n"), "stop"
    return delta


def _tell_all(told: list[tuple[Ticket[Any], Any]]) -> None:
    for ticket, event in told:
        ticket.tell(event)


def _failure(error: Exception) -> Exception:
    """What a client gets to hear; the log has the rest."""
    _log.error("the model failed", exc_info=error)
    return Refusal(500, f"the model failed: {error}", code="model_failed")
