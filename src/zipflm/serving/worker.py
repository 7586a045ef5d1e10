"""The thread that runs all models for all requests.

Each iteration scores one batch of texts, searches for alternatives at one position, and adds one
token to all texts being generated, so that new requests start soon and no kind of work starves the
others. Results are passed to the event loop at the end of an iteration.
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
from zipflm.language.decoding import Delta, TextDecoder, TextInProgress
from zipflm.language.engine import Engine
from zipflm.language.next_words import LikelyWord, most_likely_words_at
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import ServedModel
from zipflm.serving.queue import Generated, Job, Limits, Scored
from zipflm.serving.schemas import APIError

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _ScoreTask:
    model: ServedModel
    document: Document
    search: int
    """Number of alternatives to find per requested position; 0 for word models."""
    job: Job[Scored]
    index: int
    """Index of the text in the request."""
    scores: DocumentScores | None = None
    searched: list[list[LikelyWord]] = field(default_factory=list)


@dataclass(eq=False)
class _GenerateTask:
    model: ServedModel
    row: TextInProgress
    is_streamed: bool
    job: Job[Generated]
    index: int


class BatchRoom:
    """Tracks whether more rows fit into a batch that is padded to its longest row."""

    def __init__(self, engine: Engine, rows: Iterable[TextInProgress]) -> None:
        self._engine = engine
        lengths = [row.cache_positions(engine) for row in rows]
        self._count, self._longest = len(lengths), max(lengths, default=0)

    def try_add(self, row: TextInProgress) -> bool:
        """Add a row if it fits, and return whether it did. The first row always fits."""
        count, longest = self._count + 1, max(self._longest, row.cache_positions(self._engine))
        if count > 1 and count * longest > self._engine.batch_tokens:
            return False
        self._count, self._longest = count, longest
        return True


class Worker:
    """The queue and the model thread. Call public methods only from the event loop's thread."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.limits: Limits = limits
        self._metrics = metrics
        self._models = {model.name: model for model in models}
        self._engines = {
            model.name: replace(model.engine, batch_tokens=limits.max_batch_tokens)
            for model in models
        }
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()  # guards the next four attributes
        self._scores: deque[_ScoreTask] = deque()
        self._rows: deque[_GenerateTask] = deque()
        self._num_waiting = 0
        self._is_stopped = False
        # Used only by the event loop.
        self._jobs: set[Job[Any]] = set()
        self._is_closed = False
        # Written only by the model thread.
        self._searches: deque[_ScoreTask] = deque()
        self._decoders = {model.name: self._new_decoder(model) for model in models}
        self._generating: dict[TextInProgress, _GenerateTask] = {}
        self._outbox: list[tuple[Job[Any], Any]] = []
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def _new_decoder(self, model: ServedModel) -> TextDecoder:
        return TextDecoder(self._engines[model.name], model.lm.reader)

    # --- Event loop thread. ---

    @property
    def num_waiting(self) -> int:
        """Number of jobs in the queue."""
        return self._num_waiting

    @property
    def num_active(self) -> int:
        """Number of unfinished jobs, in the queue or started."""
        return len(self._jobs)

    @property
    def num_generating(self) -> int:
        return len(self._generating)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def score(
        self, model: ServedModel, documents: Sequence[Document], search: int = 0
    ) -> Job[Scored]:
        """Queue documents to score. Each document yields one result; results arrive in any order.

        With `search`, sub-word models also find this many alternatives per requested position.
        """
        job: Job[Scored] = self._new_job()
        with self._work:
            for index, document in enumerate(documents):
                self._scores.append(_ScoreTask(model, document, search, job, index))
            self._work.notify()
        return job

    def generate(
        self, model: ServedModel, rows: Sequence[TextInProgress], *, is_streamed: bool = False
    ) -> Job[Generated]:
        """Queue texts to generate. Each text yields one result when it is complete or, with
        `is_streamed`, one result per step."""
        job: Job[Generated] = self._new_job()
        with self._work:
            for index, row in enumerate(rows):
                self._rows.append(_GenerateTask(model, row, is_streamed, job, index))
            self._work.notify()
        return job

    def finish(self, job: Job[Any]) -> None:
        """Release a job, and cancel it if it is unfinished. Call this for every job, after its
        response or a disconnect."""
        if job not in self._jobs:
            return
        self._jobs.discard(job)
        job.is_cancelled = True
        with self._work:
            self._mark_started(job)

    def close(self) -> None:
        """Reject new jobs."""
        self._is_closed = True

    def stop(self) -> None:
        """Stop the thread without finishing the jobs."""
        with self._work:
            self._is_stopped = True
            self._work.notify()
        self._thread.join()

    def _new_job(self) -> Job[Any]:
        if self._is_closed:
            raise APIError(503, "the service is shutting down", code="shutting_down")
        if self._num_waiting >= self.limits.max_waiting:
            raise APIError(
                429,
                f"the queue is full ({self._num_waiting} jobs, see --max-waiting); try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        job: Job[Any] = Job()
        self._jobs.add(job)
        with self._work:
            self._num_waiting += 1
        return job

    # --- Model thread. ---

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                with self._work:
                    self._work.wait_for(self._has_work)
                    if self._is_stopped:
                        return
                try:
                    self._run_iteration()
                except Exception as error:  # the thread must survive
                    for name in self._models:
                        self._fail_all(name, error)
                self._deliver()

    def _run_iteration(self) -> None:
        for decoder in self._decoders.values():
            cancelled = [row for row in decoder.rows if self._generating[row].job.is_cancelled]
            for row in cancelled:
                del self._generating[row]
            decoder.leave(cancelled)
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
        waiting = self._scores or self._rows or self._searches or self._generating
        return self._is_stopped or bool(waiting)

    def _mark_started(self, job: Job[Any]) -> None:
        """Stop counting a job as waiting. Both threads call this, holding the lock."""
        if not job.has_started:
            job.has_started = True
            self._num_waiting -= 1

    def _next_batch(self) -> list[_ScoreTask]:
        batch: list[_ScoreTask] = []
        others: list[_ScoreTask] = []
        tokens = 0
        while self._scores:
            task = self._scores.popleft()
            if task.job.is_cancelled:
                continue
            if batch and task.model is not batch[0].model:
                others.append(task)
                continue
            tokens += len(task.document.ids)
            if batch and tokens > self.limits.max_batch_tokens:
                self._scores.appendleft(task)
                break
            batch.append(task)
            self._mark_started(task.job)
        self._scores.extendleft(reversed(others))
        return batch

    def _next_rows(self) -> dict[str, list[_GenerateTask]]:
        joining: dict[str, list[_GenerateTask]] = defaultdict(list)
        others: list[_GenerateTask] = []
        # A model is removed from `rooms` once its batch is full, so that the scan stops when no
        # model has room.
        rooms = {
            name: BatchRoom(self._engines[name], decoder.rows)
            for name, decoder in self._decoders.items()
        }
        while self._rows and rooms:
            task = self._rows.popleft()
            name = task.model.name
            if task.job.is_cancelled:
                continue
            if name not in rooms or not rooms[name].try_add(task.row):
                rooms.pop(name, None)
                others.append(task)
                continue
            joining[name].append(task)
            self._mark_started(task.job)
        self._rows.extendleft(reversed(others))
        return joining

    def _score(self, batch: list[_ScoreTask]) -> None:
        engine = self._engines[batch[0].model.name]
        try:
            scores = engine.start_scoring([task.document for task in batch])()
        except Exception as error:
            if len(batch) == 1:
                self._send(batch[0].job, _logged_failure(error))
            else:  # one failure must not affect the others
                for task in batch:
                    self._score([task])
            return
        self._metrics.batches.labels("score").observe(len(batch))
        self._metrics.tokens.labels("scored").inc(sum(len(result.nll) for result in scores))
        for task, result in zip(batch, scores, strict=True):
            task.scores = result
            self._send_or_search(task)

    def _send_or_search(self, task: _ScoreTask) -> None:
        if task.search and len(task.searched) < len(task.document.asked):
            self._searches.append(task)
        else:
            assert task.scores is not None
            self._send(task.job, Scored(task.index, task.scores, task.searched))

    def _search(self, task: _ScoreTask) -> None:
        """Search for alternatives at the next position only, so that other work is not delayed."""
        if task.job.is_cancelled:
            return
        document, done = task.document, len(task.searched)
        try:
            task.searched += most_likely_words_at(
                self._engines[task.model.name],
                task.model.lm.reader,
                document.ids,
                document.asked[done : done + 1],
                task.search,
                document.skip,
            )
        except Exception as error:
            self._send(task.job, _logged_failure(error))
        else:
            self._send_or_search(task)

    def _step(self, name: str, decoder: TextDecoder, joining: list[_GenerateTask]) -> None:
        """Add new texts to the batch and generate one token for each text."""
        self._generating |= {task.row: task for task in joining}
        try:
            if joining:
                decoder.join([task.row for task in joining])
            if not decoder.rows:
                return
            rows = list(decoder.rows)
            decoder.step()
        except Exception as error:
            self._fail_all(name, error)
            return
        self._metrics.batches.labels("generate").observe(len(rows))
        self._metrics.tokens.labels("generated").inc(len(rows))
        for row in rows:
            task = self._generating[row]
            is_complete = row.finish_reason is not None
            if is_complete:
                del self._generating[row]
            if is_complete or task.is_streamed:
                self._send(task.job, Generated(task.index, _delta(row)))

    def _fail_all(self, name: str, error: Exception) -> None:
        """Send an error for all texts that a model is generating, and reset its decoder."""
        failure = _logged_failure(error)
        for task in list(self._generating.values()):
            if task.model.name == name:
                del self._generating[task.row]
                self._send(task.job, failure)
        self._decoders[name] = self._new_decoder(self._models[name])

    def _send(self, job: Job[Any], event: Any) -> None:
        self._outbox.append((job, event))

    def _deliver(self) -> None:
        events, self._outbox = self._outbox, []
        if events:
            self._loop.call_soon_threadsafe(_put_all, events)


def _delta(row: TextInProgress) -> Delta:
    """Return new output as in the OpenAI API: at the line limit, the finish reason is `stop`, and
    the final newline is removed."""
    delta = row.release()
    if delta.finish_reason == "lines":
        delta.text, delta.finish_reason = delta.text.removesuffix("\n"), "stop"
    return delta


def _put_all(events: list[tuple[Job[Any], Any]]) -> None:
    for job, event in events:
        job.put(event)


def _logged_failure(error: Exception) -> Exception:
    """Log an error, and return the error to send to the client."""
    _log.error("the model failed", exc_info=error)
    return APIError(500, f"the model failed: {error}", code="model_failed")
