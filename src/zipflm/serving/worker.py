"""The queue, and the thread that runs all models for all requests.

Each iteration scores one batch of texts per model, searches for alternatives at one position, and
adds one token to all texts being generated, so that new requests start soon and no kind of work
starves the others. Requests take turns, and no request fills the batch of generated texts alone.
Results are passed to the event loop at the end of an iteration.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch

from zipflm.evaluation.documents import Document, DocumentScores
from zipflm.language.decoding import Delta, TextDecoder, TextInProgress
from zipflm.language.next_words import LikelyWord, most_likely_words_at
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import ServedModel
from zipflm.serving.schemas import APIError

_log = logging.getLogger(__name__)
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
        """True if all texts of the job have left the queue."""

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


@dataclass(eq=False)
class ScoreTask:
    """A text to score, and the scores."""

    job: Job[ScoreTask]
    index: int
    """Index of the text in the request."""
    document: Document
    search: int
    """Number of alternatives to find per requested position; 0 for word models."""
    scores: DocumentScores = field(init=False)
    searched: list[list[LikelyWord]] = field(default_factory=list)
    """The most likely words at each requested position. Empty for word models, where they are in
    `scores`."""


@dataclass(eq=False)
class _GenerateTask:
    job: Job[tuple[int, Delta]]
    index: int
    row: TextInProgress
    is_streamed: bool


class Worker:
    """The queue and the model thread. Call public methods only from the event loop's thread."""

    def __init__(self, models: Iterable[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.limits: Limits = limits
        self._loop = asyncio.get_running_loop()
        self._jobs: set[Job[Any]] = set()
        self._work = threading.Condition()
        self._is_stopped = False
        self._runners = {
            model.name: _ModelRunner(model, limits.max_batch_tokens, metrics) for model in models
        }
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Number of jobs in the queue."""
        return [job.has_started for job in tuple(self._jobs)].count(False)

    @property
    def num_active(self) -> int:
        """Number of unfinished jobs, in the queue or started."""
        return len(self._jobs)

    @property
    def num_generating(self) -> int:
        return sum(len(runner.generating) for runner in self._runners.values())

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def score(
        self, model: ServedModel, documents: Sequence[Document], search: int = 0
    ) -> Job[ScoreTask]:
        """Queue documents to score. Each yields its task when it is complete, in any order.

        With `search`, subword models also find this many alternatives per requested position.
        """
        job: Job[ScoreTask] = self._new_job()
        tasks = [
            ScoreTask(job, index, document, search) for index, document in enumerate(documents)
        ]
        with self._work:
            self._runners[model.name].scores[job] = deque(tasks)
            self._work.notify()
        return job

    def generate(
        self, model: ServedModel, rows: Sequence[TextInProgress], *, is_streamed: bool = False
    ) -> Job[tuple[int, Delta]]:
        """Queue texts to generate. Each text yields its index and new output when it is complete
        or, with `is_streamed`, after every step."""
        job: Job[tuple[int, Delta]] = self._new_job()
        tasks = [_GenerateTask(job, index, row, is_streamed) for index, row in enumerate(rows)]
        with self._work:
            self._runners[model.name].rows[job] = deque(tasks)
            self._work.notify()
        return job

    def finish(self, job: Job[Any]) -> None:
        """Release a job, and cancel it if it is unfinished. Call this for every job, after its
        response or a disconnect."""
        self._jobs.discard(job)
        job.is_cancelled = True

    def stop(self) -> None:
        """Stop the thread without finishing the jobs."""
        with self._work:
            self._is_stopped = True
            self._work.notify()
        self._thread.join()

    def _new_job(self) -> Job[Any]:
        if (num_waiting := self.num_waiting) >= self.limits.max_waiting:
            raise APIError(
                429,
                f"the queue is full ({num_waiting} jobs, see --max-waiting); try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        job: Job[Any] = Job()
        self._jobs.add(job)
        return job

    # --- Model thread. ---

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(self._has_work)
                if self._is_stopped:
                    return
            runners = self._runners.values()
            if events := [event for runner in runners for event in runner.run_iteration()]:
                self._loop.call_soon_threadsafe(_put_all, events)

    def _has_work(self) -> bool:
        return self._is_stopped or any(runner.has_work for runner in self._runners.values())


class _ModelRunner:
    """Runs one model. The event loop adds tasks to `scores` and `rows`; everything else belongs to
    the model thread."""

    def __init__(self, model: ServedModel, max_batch_tokens: int, metrics: Metrics) -> None:
        self._engine = replace(model.engine, batch_tokens=max_batch_tokens)
        self._reader = model.reader
        self._metrics = metrics
        self.scores: dict[Job[Any], deque[ScoreTask]] = {}
        self.rows: dict[Job[Any], deque[_GenerateTask]] = {}
        self.generating: dict[TextInProgress, _GenerateTask] = {}
        self._searches: dict[Job[Any], deque[ScoreTask]] = {}
        self._events: list[tuple[Job[Any], Any]] = []
        self._decoder = TextDecoder(self._engine, self._reader)

    @property
    def has_work(self) -> bool:
        return bool(self.scores or self.rows or self.generating or self._searches)

    def run_iteration(self) -> list[tuple[Job[Any], Any]]:
        """Return results and the jobs to which they belong."""
        try:
            if batch := self._next_batch():
                self._score(batch)
            if self._searches:
                job = next(iter(self._searches))
                tasks = self._searches.pop(job)
                first = tasks.popleft()
                if tasks:
                    self._searches[job] = tasks  # at the end
                self._search(first)
            self._generate()
        except Exception as error:  # the thread must survive
            failure = _logged_failure(error)
            for task in self.generating.values():
                self._send(task.job, failure)
            self.generating = {}
            self._decoder = TextDecoder(self._engine, self._reader)
        events, self._events = self._events, []
        return events

    def _send(self, job: Job[_T], event: _T | Exception) -> None:
        self._events.append((job, event))

    def _next_batch(self) -> list[ScoreTask]:
        batch: list[ScoreTask] = []
        tokens = 0
        for task in _take_turns(self.scores, Counter()):
            tokens += len(task.document.ids)
            if batch and tokens > self._engine.batch_tokens:
                break
            batch.append(task)
        return batch

    def _score(self, batch: list[ScoreTask]) -> None:
        try:
            scores = self._engine.start_scoring([task.document for task in batch])()
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

    def _send_or_search(self, task: ScoreTask) -> None:
        if task.search and len(task.searched) < len(task.document.asked):
            self._searches.setdefault(task.job, deque()).append(task)
        else:
            self._send(task.job, task)

    def _search(self, task: ScoreTask) -> None:
        """Search for alternatives at the next position only, so that other work is not delayed."""
        if task.job.is_cancelled:
            return
        document, done = task.document, len(task.searched)
        try:
            task.searched += most_likely_words_at(
                self._engine,
                self._reader,
                document.ids,
                document.asked[done : done + 1],
                task.search,
                document.skip,
            )
        except Exception as error:
            self._send(task.job, _logged_failure(error))
        else:
            self._send_or_search(task)

    def _generate(self) -> None:
        """Update the batch and generate one token for each of its texts."""
        decoder = self._decoder
        cancelled = [row for row, task in self.generating.items() if task.job.is_cancelled]
        for row in cancelled:
            del self.generating[row]
        decoder.leave(cancelled)
        if joining := decoder.fitting(self._waiting_rows()):
            decoder.join(joining)
        if not decoder.rows:
            return
        rows = list(decoder.rows)
        decoder.step()
        self._metrics.batches.labels("generate").observe(len(rows))
        self._metrics.tokens.labels("generated").inc(len(rows))
        for row in rows:
            task = self.generating[row]
            is_complete = row.finish_reason is not None
            if is_complete:
                del self.generating[row]
            if is_complete or task.is_streamed:
                self._send(task.job, (task.index, _delta(row)))

    def _waiting_rows(self) -> Iterator[tuple[TextInProgress, float]]:
        """Yield texts in the queue for `TextDecoder.fitting`. A text starts when the next one is
        requested. It must leave room for a third of the texts that its job already has in the
        batch, so that new jobs find room."""
        counts = Counter(task.job for task in self.generating.values())
        for task in _take_turns(self.rows, counts):
            yield task.row, counts[task.job] / 3
            self.generating[task.row] = task


def _take_turns(queue: dict[Job[Any], deque[_T]], counts: Counter[Job[Any]]) -> Iterator[_T]:
    """Yield tasks of the job with the fewest in the batch (`counts`); equal jobs take turns. A task
    leaves the queue when the next one is requested."""
    while queue:
        # A copy, because the event loop can add jobs at any time.
        job = min(tuple(queue), key=counts.__getitem__)
        if job.is_cancelled:
            del queue[job]
            continue
        yield queue[job][0]
        tasks = queue.pop(job)
        tasks.popleft()
        if tasks:
            queue[job] = tasks  # at the end
        job.has_started = not tasks
        counts[job] += 1


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
