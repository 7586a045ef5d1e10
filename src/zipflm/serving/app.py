"""The HTTP application: all endpoints, and the page at `/`, built from `web/`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from zipflm.language.decoding import Delta
from zipflm.messages import quoted
from zipflm.serving.completions import Completion
from zipflm.serving.metrics import Metrics
from zipflm.serving.middleware import BASIC, BEARER, Middleware
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import detokenize, require_ids, tokenize
from zipflm.serving.schemas import (
    APIError,
    CompletionRequest,
    CompletionResponse,
    DetokenizeRequest,
    ErrorResponse,
    ModelEntry,
    ModelList,
    ScoreRequest,
    ScoreResponse,
    TokenizeRequest,
    on_error,
)
from zipflm.serving.scores import Scoring
from zipflm.serving.worker import Job, Limits, ScoreTask, Worker

# In this order, because later scripts use earlier ones.
_SCRIPTS = (
    *("elements", "numbers", "words", "api"),
    *("editor", "strip", "panel", "totals"),
    *("state", "render", "selection", "requests", "events", "models", "link", "page"),
)


@cache
def page() -> HTMLResponse:
    """Return the page. Its policy allows only its own style sheet and script (by hash), requests
    to this server, and `data:` images."""
    style = _source("page.css")
    script = "\n".join(['"use strict";', *(_source(f"{name}.js") for name in _SCRIPTS)])
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
    headers = {
        "Content-Security-Policy": "; ".join(" ".join(rule) for rule in allowed.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    html = Template(_source("page.html")).substitute(css=style, script=script)
    return HTMLResponse(html, headers=headers)


def _source(name: str) -> str:
    return (resources.files("zipflm.serving") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_T = TypeVar("_T")


async def _jobs() -> AsyncIterator[ExitStack]:
    """Release the jobs of a request when the response is sent or the client disconnects."""
    with ExitStack() as jobs:
        yield jobs


Jobs = Annotated[ExitStack, Depends(_jobs)]


class Service:
    """The request handlers."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits) -> None:
        """Start the threads. Call this from the event loop's thread."""
        self.models, self.limits, self.metrics = models, limits, Metrics()
        self.worker = worker = Worker(models.values(), limits, self.metrics)
        # A single thread, so that texts to encode take little time from the model thread.
        self._text_thread = ThreadPoolExecutor(1, "text")
        self.metrics.waiting.set_function(lambda: worker.num_waiting)
        self.metrics.in_progress.set_function(lambda: worker.num_active)
        self.metrics.generating.set_function(lambda: worker.num_generating)

    def stop(self) -> None:
        self.worker.stop()
        self._text_thread.shutdown()

    def _model(self, name: str | None) -> ServedModel:
        name = next(iter(self.models)) if name is None else name
        if name not in self.models:
            known = ", ".join(self.models)
            message = f"model={quoted(name)}: no such model; choose from {known}"
            raise APIError(404, message, param="model", code="model_not_found")
        return self.models[name]

    async def _run_in_text_thread(self, call: Callable[[], _T]) -> _T:
        """Run `call`, which encodes or decodes texts, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._text_thread, call)

    async def page(self) -> Response:
        return page()

    async def health(self) -> dict[str, str]:
        """Return status 200, or 503 if the thread that runs the models has stopped."""
        if not self.worker.is_alive:
            message = "the model thread has stopped; restart the service"
            raise APIError(503, message, code="model_thread_stopped")
        return {"status": "ok"}

    async def prometheus(self) -> Response:
        """Return metrics in the text format of Prometheus."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def list_models(self) -> ModelList:
        """List the served models. The first one is the default."""
        return ModelList(data=[model.entry for model in self.models.values()])

    async def get_model(self, name: str) -> ModelEntry:
        """Return the entry of one model."""
        return self._model(name).entry

    async def score(self, request: ScoreRequest, jobs: Jobs) -> Response:
        """Return the log-probability of each word and line end of one or more texts.

        `top` adds the most likely words at each position (alternatives), `ranks` the rank of each
        word, and `sources` the contributions of the model and of its memories to the probability.
        Subword models have no sources, and rank a word only among its alternatives.
        """
        model = self._model(request.model)
        scoring = await self._run_in_text_thread(lambda: Scoring(request, model, self.limits))
        job = self.worker.score(model, scoring.documents(), scoring.search)
        jobs.callback(self.worker.finish, job)
        scored: dict[int, ScoreTask] = {}
        for _ in scoring.texts:
            task = await job.next()
            scored[task.index] = task
        return await _json(lambda: scoring.response(scored))

    async def completions(self, request: CompletionRequest, jobs: Jobs) -> Response:
        """Continue one or more prompts, like the OpenAI endpoint.

        With `stream`, the response is a stream of server-sent events.
        """
        model, worker = self._model(request.model), self.worker
        completion = await self._run_in_text_thread(lambda: Completion(request, model, self.limits))
        scoring: Job[ScoreTask] | None = None
        generating: Job[tuple[int, Delta]] | None = None
        if documents := completion.documents():
            scoring = worker.score(model, documents)
            jobs.callback(worker.finish, scoring)
        if rows := completion.rows():
            generating = worker.generate(model, rows, is_streamed=request.stream)
            jobs.callback(worker.finish, generating)

        async def parts() -> AsyncIterator[Iterable[CompletionResponse]]:
            if scoring is not None:
                for _ in documents:
                    task = await scoring.next()
                    completion.scores[task.index] = task.scores
            yield completion.first_chunks()
            while generating is not None and not completion.is_complete:
                index, delta = await generating.next()
                completion.add(index, delta)
                yield completion.chunks(index, delta)
            yield completion.last_chunks()

        if request.stream:
            # Ask proxies not to buffer the stream.
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(_events(parts()), 200, headers, "text/event-stream")
        async for _ in parts():
            pass
        return await _json(completion.full_response)

    async def chat_completions(self) -> None:
        message = "this server has no chat models; use /v1/completions with a prompt"
        raise APIError(404, message, param="model", code="not_a_chat_model")

    async def tokenizer_info(self) -> dict[str, str | None]:
        """Return the special tokens. The end-of-line token is also the start token, and there is
        no padding token."""
        end, unknown = SPECIALS[END], SPECIALS[UNKNOWN]
        return {"eos_token": end, "bos_token": end, "pad_token": None, "unk_token": unknown}

    async def tokenize(self, request: TokenizeRequest) -> dict[str, Any]:
        """Return the token ids of a text."""
        model = self._model(request.model)
        ids = await self._run_in_text_thread(lambda: tokenize(model, request.prompt))
        return {"tokens": ids, "count": len(ids), "max_model_len": self.limits.max_text_tokens}

    async def detokenize(self, request: DetokenizeRequest) -> dict[str, str]:
        """Return the text of token ids."""
        model = self._model(request.model)
        require_ids("tokens", request.tokens, model, self.limits)
        text = await self._run_in_text_thread(lambda: detokenize(model.reader, request.tokens))
        return {"prompt": text}


async def _json(build: Callable[[], BaseModel]) -> Response:
    """Build and serialize a response in a thread, because it can be large."""
    content = await asyncio.to_thread(lambda: build().model_dump_json(exclude_unset=True))
    return Response(content, media_type="application/json")


async def _events(parts: AsyncIterator[Iterable[BaseModel]]) -> AsyncIterator[str]:
    try:
        async for chunks in parts:
            for chunk in chunks:
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    except APIError as error:  # the status has already been sent
        yield f"data: {error.body.model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"


def make_app(
    service: Service,
    *,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    is_local: bool = False,
) -> ASGIApp:
    """Build the application.

    With `keys`, requests need one of them, except for `/health`, `/docs` and `/openapi.json`. Web
    pages from `origins` may send requests. `is_local` means that the server listens on a local
    address. Without keys, it then rejects requests whose `Host` header is not a local name, because
    any web site could otherwise reach it with a name that resolves to 127.0.0.1 (DNS rebinding).
    """
    app = FastAPI(
        title="zipflm",
        version=__version__,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        # Only for the OpenAPI schema: the middleware checks the keys.
        dependencies=[Security(BEARER), Security(BASIC)] if keys else [],
        responses={"4XX": {"model": ErrorResponse}},
        exception_handlers=dict.fromkeys(
            (HTTPException, RequestValidationError, Exception), on_error
        ),
    )
    add = app.add_api_route
    add("/score", service.score, methods=["POST"], response_model=ScoreResponse)
    add("/v1/completions", service.completions, methods=["POST"], response_model=CompletionResponse)
    add("/v1/chat/completions", service.chat_completions, methods=["POST"], include_in_schema=False)
    add("/v1/models", service.list_models)
    add("/v1/models/{name:path}", service.get_model)
    add("/tokenizer_info", service.tokenizer_info)
    add("/tokenize", service.tokenize, methods=["POST"])
    add("/detokenize", service.detokenize, methods=["POST"])
    add("/", service.page, include_in_schema=False)
    add("/health", service.health)
    add("/ready", service.health)
    add("/metrics", service.prometheus)
    wrapped = Middleware(
        app,
        service.metrics,
        max_body=service.limits.max_body,
        paths={route.path_format for route in app.routes if isinstance(route, APIRoute)},
        keys=keys,
        is_local_only=is_local and not keys,
    )
    if not origins:
        return wrapped
    # Outermost, because browsers send preflight requests without a key.
    return CORSMiddleware(
        wrapped,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=["Retry-After", "X-Request-Id"],
    )
