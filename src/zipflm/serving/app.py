"""The HTTP application: every endpoint, and the page at `/`.

The page is one HTML file built from `web/`. Its content security policy allows its own style sheet,
its own script and requests to this server only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from zipflm import __version__
from zipflm.data.vocabulary import END, SPECIALS, UNKNOWN
from zipflm.messages import quoted
from zipflm.serving.completions import Completion
from zipflm.serving.metrics import Metrics
from zipflm.serving.middleware import BASIC, BEARER, Middleware
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import detokenize, require_ids, tokenize
from zipflm.serving.queue import Scored, Ticket, Written
from zipflm.serving.schemas import (
    CompletionAnswer,
    CompletionRequest,
    DetokenizeRequest,
    ErrorAnswer,
    ModelEntry,
    ModelList,
    Refusal,
    ScoreAnswer,
    ScoreRequest,
    TokenizeRequest,
    on_error,
)
from zipflm.serving.scores import Scoring
from zipflm.serving.worker import Worker

# In this order: later ones use what earlier ones define.
_SCRIPTS = (
    *("elements", "numbers", "words", "server"),
    *("editor", "strip", "panel", "totals"),
    *("view", "showing", "chosen_word", "asking", "events", "models", "link", "page"),
)


@dataclass(frozen=True)
class Page:
    """What to send, and what to let it do."""

    html: str
    policy: str
    """For the header `Content-Security-Policy`."""


@cache
def page() -> Page:
    """The page; the same every time."""
    style = _source("page.css")
    script = "\n".join(['"use strict";', *(_source(f"{name}.js") for name in _SCRIPTS)])
    html = Template(_source("page.html")).substitute(css=style, script=script)
    allowed = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return Page(html, "; ".join(f"{name} {source}" for name, source in allowed.items()))


def _source(name: str) -> str:
    return (resources.files("zipflm.serving") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_T = TypeVar("_T")


async def _tickets() -> AsyncIterator[ExitStack]:
    """Gives up the request's places in the queue once the answer is sent, or the client left."""
    with ExitStack() as tickets:
        yield tickets


Tickets = Annotated[ExitStack, Depends(_tickets)]


class Service:
    """The models, their worker, and a handler for every path."""

    def __init__(self, models: Mapping[str, ServedModel], worker: Worker, metrics: Metrics) -> None:
        self.models, self.worker, self.metrics = models, worker, metrics
        self.limits = worker.limits
        self.is_ending = False
        # One thread: readers of text have a cache and belong to one thread each.
        self._reading = ThreadPoolExecutor(1, "reading")
        for name, meaning, value in (
            ("zipflm_requests_waiting", "Requests not begun yet.", lambda: worker.num_waiting),
            ("zipflm_requests_unanswered", "Requests accepted.", lambda: worker.num_unanswered),
            ("zipflm_texts_writing", "Texts being written.", lambda: worker.num_writing),
        ):
            metrics.gauge(name, meaning, value)

    def stop(self) -> None:
        self.worker.stop()
        self._reading.shutdown()

    def _model(self, name: str | None) -> ServedModel:
        """The model of this name; without one, the first."""
        name = next(iter(self.models)) if name is None else name
        if name not in self.models:
            known = ", ".join(self.models)
            message = f"model={quoted(name)}: no such model; this service has {known}"
            raise Refusal(404, message, param="model", code="model_not_found")
        return self.models[name]

    async def _read(self, call: Callable[[], _T]) -> _T:
        """Encode the texts of a request while others are answered."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, call)

    # --- The page and the state of the service. ---

    async def page(self) -> Response:
        made = page()
        headers = {
            "Content-Security-Policy": made.policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(made.html, headers=headers)

    async def health(self) -> dict[str, str]:
        """Whether the process can compute."""
        if not self.worker.is_alive:
            raise Refusal(503, "the model thread has ended", code="dead")
        return {"status": "ok"}

    async def ready(self) -> dict[str, Any]:
        """Whether new requests are accepted."""
        if self.is_ending or not self.worker.is_alive:
            raise Refusal(503, "the service is about to end", code="ending")
        return {"status": "ready", "models": list(self.models)}

    async def prometheus(self) -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def list_models(self) -> ModelList:
        return ModelList(data=[model.entry for model in self.models.values()])

    async def one_model(self, name: str) -> ModelEntry:
        return self._model(name).entry

    # --- Scores and completions. ---

    async def score(self, asked: ScoreRequest, tickets: Tickets) -> Response:
        """Log-probabilities of the words of texts, their ranks and alternatives."""
        model = self._model(asked.model)
        scoring = await self._read(lambda: Scoring(asked, model, self.limits))
        ticket = self.worker.score(model, scoring.documents(), scoring.search)
        tickets.callback(self.worker.finish, ticket)
        scored: dict[int, Scored] = {}
        for _ in scoring.texts:
            event = await ticket.next()
            scored[event.place] = event
        return await _json(lambda: scoring.answer(scored))

    async def completions(self, asked: CompletionRequest, tickets: Tickets) -> Response:
        """Continuations of prompts, as OpenAI's completions; server-sent events with `stream`."""
        model, worker = self._model(asked.model), self.worker
        completion = await self._read(lambda: Completion(asked, model, self.limits))
        scoring: Ticket[Scored] | None = None
        writing: Ticket[Written] | None = None
        if documents := completion.documents():
            scoring = worker.score(model, documents)
            tickets.callback(worker.finish, scoring)
        if rows := completion.rows():
            writing = worker.write(model, rows, is_streamed=asked.stream)
            tickets.callback(worker.finish, writing)

        async def parts() -> AsyncIterator[Iterable[CompletionAnswer]]:
            """The parts of a stream as they come, while the completion grows."""
            if scoring is not None:
                for _ in documents:
                    scored = await scoring.next()
                    completion.add_scores(scored.place, scored.scores)
            yield completion.first_chunks()
            while writing is not None and not completion.is_complete:
                index, delta = await writing.next()
                completion.add(index, delta)
                yield completion.chunks(index, delta)
            yield completion.last_chunks()

        if asked.stream:
            # Proxies must pass on every part at once.
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(_events(parts()), 200, headers, "text/event-stream")
        async for _ in parts():
            pass
        return await _json(completion.whole)

    async def chat_completions(self) -> None:
        message = "these are language models, not chat models; use /v1/completions with a prompt"
        raise Refusal(404, message, param="model", code="not_a_chat_model")

    # --- The tokenizer, for harnesses that count tokens before they ask. ---

    async def tokenizer_info(self) -> dict[str, str | None]:
        """The same token ends a line and stands before every text."""
        end, unknown = SPECIALS[END], SPECIALS[UNKNOWN]
        return {"eos_token": end, "bos_token": end, "pad_token": None, "unk_token": unknown}

    async def tokenize(self, asked: TokenizeRequest) -> dict[str, Any]:
        """The ids of a text."""
        model = self._model(asked.model)
        ids = await self._read(lambda: tokenize(model, asked.prompt))
        return {"tokens": ids, "count": len(ids), "max_model_len": self.limits.max_words}

    async def detokenize(self, asked: DetokenizeRequest) -> dict[str, str]:
        """The text of ids."""
        model = self._model(asked.model)
        require_ids("tokens", asked.tokens, model, self.limits)
        return {"prompt": await self._read(lambda: detokenize(model.reader, asked.tokens))}


async def _json(build: Callable[[], BaseModel]) -> Response:
    """A large answer: both made and written in a thread."""
    content = await asyncio.to_thread(lambda: build().model_dump_json(exclude_unset=True))
    return Response(content, media_type="application/json")


async def _events(parts: AsyncIterator[Iterable[BaseModel]]) -> AsyncIterator[str]:
    """Server-sent events, with `[DONE]` as the last."""
    try:
        async for chunks in parts:
            for chunk in chunks:
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    except Refusal as refusal:  # too late for another status
        yield f"data: {refusal.answer.model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"


def make_app(
    service: Service,
    *,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    is_local: bool = False,
) -> ASGIApp:
    """The application. `keys`, if any, are required; pages of `origins` may call it.

    `is_local` says that it listens on a local address. Its clients must then use a local name,
    unless there are keys, which no other site knows: then a proxy may pass on any name."""
    app = FastAPI(
        title="zipflm",
        version=__version__,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        # For the description alone: the middleware checks keys, before it reads bodies.
        dependencies=[Security(BEARER), Security(BASIC)] if keys else [],
        responses={"4XX": {"model": ErrorAnswer}},
    )
    add = app.add_api_route
    add("/score", service.score, methods=["POST"], response_model=ScoreAnswer)
    add("/v1/completions", service.completions, methods=["POST"], response_model=CompletionAnswer)
    add("/v1/chat/completions", service.chat_completions, methods=["POST"], include_in_schema=False)
    add("/v1/models", service.list_models)
    add("/v1/models/{name:path}", service.one_model)
    add("/tokenizer_info", service.tokenizer_info)
    add("/tokenize", service.tokenize, methods=["POST"])
    add("/detokenize", service.detokenize, methods=["POST"])
    add("/", service.page, include_in_schema=False)
    add("/health", service.health)
    add("/ready", service.ready)
    add("/metrics", service.prometheus)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, on_error)
    around = Middleware(
        app,
        service.metrics,
        max_body=service.limits.max_body,
        paths={route.path for route in app.routes if isinstance(route, APIRoute)},
        keys=keys,
        is_local_only=is_local and not keys,
    )
    if not origins:
        return around
    # Outside, because a browser asks whether it may ask without showing a key.
    return CORSMiddleware(
        around,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=["Retry-After", "X-Request-Id"],
    )
