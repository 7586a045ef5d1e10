"""The HTTP side: which path does what. Everything else is called from here.

Handlers read JSON themselves, because every mistake of a client gets an answer in OpenAI's error
shape with the reason in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from zipflm.quoting import quoted
from zipflm.serving.answers import models_answer, score_answer
from zipflm.serving.completions import CompletionAnswer, CompletionRequest, completion_request
from zipflm.serving.door import Door
from zipflm.serving.errors import Refusal
from zipflm.serving.fields import parse_object, require_known_model
from zipflm.serving.messages import (
    WARNING_HEADER,
    ClientLeft,
    json_answer,
    read_body,
    refused,
    send_event,
    warning_headers,
)
from zipflm.serving.metrics import Metrics
from zipflm.serving.models import ServedModel
from zipflm.serving.page import page
from zipflm.serving.requests import ScoreRequest, score_request
from zipflm.serving.scoring import Document
from zipflm.serving.steps import Row
from zipflm.serving.tickets import Limits, Scored, Ticket, Written
from zipflm.serving.tokenizer import detokenized, tokenized, tokenizer_info
from zipflm.serving.worker import Worker

_T = TypeVar("_T")

_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Service:
    """The models, their worker and what all handlers share."""

    def __init__(self, models: Mapping[str, ServedModel], worker: Worker, metrics: Metrics) -> None:
        self.models: Mapping[str, ServedModel] = models
        self.worker: Worker = worker
        self.metrics: Metrics = metrics
        self.limits: Limits = worker.limits
        self.is_ending = False
        self._reading = asyncio.Lock()
        """Held while a request is read: readers remember words and belong to one thread."""

    # --- What there is. ---

    async def page(self, request: Request) -> Response:
        made = page()
        headers = {"Content-Security-Policy": made.policy, **_PAGE_HEADERS}
        return HTMLResponse(made.html, headers=headers)

    async def list_models(self, request: Request) -> Response:
        return json_answer(models_answer(list(self.models.values())))

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        require_known_model(name, self.models)
        return json_answer(self.models[name].facts)

    async def health(self, request: Request) -> Response:
        """Whether the process is alive and can compute."""
        if not self.worker.is_alive:
            raise Refusal(503, "the model thread has ended", code="dead")
        return json_answer({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether new requests are taken."""
        if self.is_ending or not self.worker.is_alive:
            raise Refusal(503, "the service is about to end", code="ending")
        return json_answer({"status": "ready", "models": list(self.models)})

    async def measurements(self, request: Request) -> Response:
        gauges = {
            "zipflm_requests_waiting": (self.worker.num_waiting, "Requests not begun yet."),
            "zipflm_requests_unanswered": (self.worker.num_unanswered, "Requests accepted."),
            "zipflm_texts_writing": (self.worker.num_writing, "Texts that grow with every step."),
        }
        text = self.metrics.text(gauges)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    # --- What is computed. ---

    async def score(self, request: Request) -> Response:
        def read(values: dict[str, Any]) -> tuple[ScoreRequest, list[Document]]:
            asked = score_request(values, self.models, self.limits)
            return asked, asked.documents()

        asked, documents = await self._read(request, read)
        ticket = self.worker.score(asked.model, documents, asked.search)
        scored: dict[int, Scored] = {}

        async def collect() -> None:
            while len(scored) < len(asked.texts):
                event = await ticket.next()
                scored[event.place] = event

        await self._unless_left(request, collect(), ticket)
        in_order = [scored[place] for place in range(len(asked.texts))]
        headers = warning_headers(asked.warnings)
        return await asyncio.to_thread(lambda: json_answer(score_answer(asked, in_order), headers))

    async def completions(self, request: Request) -> Response:
        def read(values: dict[str, Any]) -> tuple[CompletionRequest, list[Document], list[Row]]:
            asked = completion_request(values, self.models, self.limits)
            return asked, asked.documents(), asked.rows()

        asked, documents, rows = await self._read(request, read)
        answer = CompletionAnswer(asked)
        scoring, writing = self._begun(asked, documents, rows)

        async def score() -> None:
            if scoring is not None:
                for _ in asked.prompts:
                    event = await scoring.next()
                    answer.add_scores(event.place, event.scores)

        if asked.is_streamed:
            return _Stream(self, asked, answer, score, scoring, writing)

        async def collect() -> None:
            await score()
            while writing and not answer.is_complete:
                answer.add(*await writing.next())

        await self._unless_left(request, collect(), scoring, writing)
        headers = warning_headers(asked.warnings)
        return await asyncio.to_thread(lambda: json_answer(answer.whole(), headers))

    async def chat_completions(self, request: Request) -> Response:
        message = "these are language models, not chat models; use /v1/completions with a prompt"
        raise Refusal(404, message, param="model", code="not_a_chat_model")

    def _begun(
        self, asked: CompletionRequest, documents: list[Document], rows: list[Row]
    ) -> tuple[Ticket[Scored] | None, Ticket[Written] | None]:
        """The work on prompts and on continuations, where there is any."""
        scoring = self.worker.score(asked.model, documents) if documents else None
        try:
            writing = (
                self.worker.write(asked.model, rows, is_streamed=asked.is_streamed)
                if rows
                else None
            )
        except Exception:
            self.finish(scoring)
            raise
        return scoring, writing

    # --- What a harness asks to count tokens. ---

    async def tokenizer_info(self, request: Request) -> Response:
        return json_answer(tokenizer_info())

    async def tokenize(self, request: Request) -> Response:
        return json_answer(
            await self._read(request, lambda values: tokenized(values, self.models, self.limits))
        )

    async def detokenize(self, request: Request) -> Response:
        return json_answer(
            await self._read(request, lambda values: detokenized(values, self.models, self.limits))
        )

    # --- What handlers share. ---

    def finish(self, *tickets: Ticket[Any] | None) -> None:
        for ticket in tickets:
            if ticket is not None:
                self.worker.finish(ticket)

    async def _read(self, request: Request, read: Callable[[dict[str, Any]], _T]) -> _T:
        """Read a request in a thread, so that others are answered meanwhile."""
        body = await read_body(request, self.limits.max_body)
        async with self._reading:
            return await asyncio.to_thread(lambda: read(parse_object(body)))

    async def _unless_left(
        self, request: Request, work: Coroutine[Any, Any, None], *tickets: Ticket[Any] | None
    ) -> None:
        """Wait for the work, but not for a client that is no longer there."""
        try:
            if not await finished_before_left(request.receive, work):
                self.metrics.client_left()
                raise ClientLeft
        finally:
            self.finish(*tickets)


async def finished_before_left(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before the client closed the connection; its body must have been
    read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working  # raises what it raised
        return working.done()
    finally:
        working.cancel()
        leaving.cancel()


class _Stream(Response):
    """Server-sent events: parts of the answer as they come, then `[DONE]`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        asked: CompletionRequest,
        answer: CompletionAnswer,
        score: Callable[[], Awaitable[None]],
        scoring: Ticket[Scored] | None,
        writing: Ticket[Written] | None,
    ) -> None:
        # Proxies must not collect parts of the answer.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        headers |= warning_headers(asked.warnings)
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._service, self._answer, self._score = service, answer, score
        self._scoring, self._writing = scoring, writing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            if not await finished_before_left(receive, self._send_all(send)):
                self._service.metrics.client_left()
        except TimeoutError:  # it does not read; the connection is closed without an end
            self._service.metrics.client_left()
        finally:
            self._service.finish(self._scoring, self._writing)

    async def _send_all(self, send: Send) -> None:
        answer = self._answer
        try:
            await self._score()
            for chunk in answer.first_chunks():
                await send_event(send, chunk)
            while self._writing and not answer.is_complete:
                index, delta = await self._writing.next()
                answer.add(index, delta)
                if (part := answer.chunk(index, delta)) is not None:
                    await send_event(send, part)
            for chunk in answer.last_chunks():
                await send_event(send, chunk)
        except Refusal as refusal:  # too late for another status
            await send_event(send, refusal.as_dict())
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    service: Service,
    *,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    is_local: bool = False,
) -> ASGIApp:
    """The application; `keys` open it if there are any, `origins` may call it from their pages.

    With `is_local` it listens on a local address."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/", service.page),
        ("GET", "/health", service.health),
        ("GET", "/ready", service.ready),
        ("GET", "/metrics", service.measurements),
        ("GET", "/v1/models", service.list_models),
        ("GET", "/v1/models/{name:path}", service.one_model),
        ("POST", "/v1/completions", service.completions),
        ("POST", "/v1/chat/completions", service.chat_completions),
        ("POST", "/score", service.score),
        ("GET", "/tokenizer_info", service.tokenizer_info),
        ("POST", "/tokenize", service.tokenize),
        ("POST", "/detokenize", service.detokenize),
    ]
    for method, path, handler in routes:
        app.add_route(path, handler, methods=[method])
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientLeft, _on_client_left)
    app.add_exception_handler(Exception, _on_failure)
    paths = {path for _, path, _ in routes}
    door = Door(app, service.metrics, keys, paths, is_local=is_local)
    if not origins:
        return door
    # Outside, because a browser asks whether it may ask without showing a key.
    return CORSMiddleware(
        door,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=[WARNING_HEADER, "Retry-After", "X-Request-Id"],
    )


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refused(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {quoted(request.url.path)}: {error.detail}"
    answer = refused(Refusal(error.status_code, message, code="no_such_path"))
    answer.headers.update(error.headers or {})  # Allow
    return answer


async def _on_client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the count; nobody reads it


async def _on_failure(request: Request, error: Exception) -> Response:
    return refused(Refusal(500, "the service failed; its log says why", code="failed"))
