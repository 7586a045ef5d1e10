"""Middleware: API keys, hosts, body size, timeouts, disconnects and request metrics."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

from fastapi import Request
from fastapi.security import HTTPBasic, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zipflm.messages import quoted
from zipflm.serving.metrics import Metrics
from zipflm.serving.schemas import APIError

BEARER = HTTPBearer(auto_error=False)
BASIC = HTTPBasic(auto_error=False)
# Paths that need no key.
_PUBLIC_PATHS = ("/health", "/docs", "/openapi.json")
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?", re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/*A-Z]+")  # as browsers send them

BODY_SECONDS = 20
"""Timeout for receiving a request body."""
SEND_SECONDS = 20
"""A client that takes longer to receive a part of the response is disconnected."""
_MAX_DISCARDED = 1 << 24
"""Up to this many bytes beyond the limit are read and dropped, so the client gets the error."""


def read_keys(path: str) -> list[bytes]:
    keys = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"--api-key-file {path}: contains no keys; add one per line")
    return keys


def require_origins(origins: Sequence[str]) -> None:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"--cors-origin {origin}: not an origin; give scheme, host and port in lower case, "
                "without a path, such as http://localhost:3000"
            )


async def _require_key(request: Request, keys: Sequence[bytes]) -> None:
    try:
        bearer, basic = await BEARER(request), await BASIC(request)
    except HTTPException:  # malformed header
        bearer = basic = None
    given = bearer.credentials if bearer else basic.password if basic else ""
    key = given.encode("latin-1")
    # Compare with all keys, so that the time does not reveal which one matched.
    if not any([hmac.compare_digest(key, known) for known in keys]):
        # With Basic, browsers ask for a password and send it with all requests of the page.
        is_page = request.scope["path"] == "/"
        scheme = 'Basic realm="zipflm: an API key as password"' if is_page else "Bearer"
        raise APIError(
            401,
            "missing or invalid API key",
            code="invalid_api_key",
            headers={"WWW-Authenticate": scheme},
        )


class Middleware:
    """ASGI middleware around the application."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        max_body: int,
        paths: Collection[str],
        keys: Sequence[bytes],
        is_local_only: bool,
    ) -> None:
        """Create the middleware.

        Metrics are recorded for each path in `paths`, and for all others together as `other`. With
        `keys`, requests need one of them, except for a few public paths. With `is_local_only`, the
        `Host` header must be a local name, which prevents DNS rebinding.
        """
        self._app, self._metrics, self._max_body = app, metrics, max_body
        self._paths, self._keys, self._is_local_only = paths, keys, is_local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        sender = _ResponseSender(send)
        try:
            await self._handle(scope, receive, sender)
        except ClientDisconnect:
            self._metrics.disconnects.inc()
        finally:
            route = getattr(scope.get("route"), "path_format", scope["path"])
            path = route if route in self._paths else "other"
            self._metrics.requests.labels(path, sender.status).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - start)

    async def _handle(self, scope: Scope, receive: Receive, send: _ResponseSender) -> None:
        request = Request(scope, receive)
        try:
            if self._is_local_only:
                _require_local(request)
            # Not `request.url`, which depends on the Host header in older releases of starlette.
            if self._keys and scope["path"] not in _PUBLIC_PATHS:
                await _require_key(request, self._keys)
            if request.method != "POST":
                await self._app(scope, receive, send)
                return
            body = await self._read_body(request)
        except APIError as error:
            await error.response(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await asyncio.Future()

        response = asyncio.ensure_future(self._app(scope, replay, send))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((response, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and not send.is_complete:
                raise ClientDisconnect
            await response
        finally:
            disconnect.cancel()
            response.cancel()
            await asyncio.wait((response,))

    async def _read_body(self, request: Request) -> bytes:
        # Browsers let other sites send forms and plain text without a CORS check, but not JSON.
        content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            message = f"Content-Type {quoted(content_type)}: use application/json"
            raise APIError(415, message, code="unsupported_content_type")
        limit = self._max_body
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size > limit + _MAX_DISCARDED:
                        break
        except TimeoutError:
            message = f"timed out after {BODY_SECONDS} seconds waiting for the request body"
            raise APIError(408, message, code="too_slow") from None
        if size > limit:
            message = f"request body: larger than {limit} bytes; send fewer texts per request"
            raise APIError(413, message, code="body_too_large", headers={"Connection": "close"})
        return b"".join(parts)


class _ResponseSender:
    """Sends a response with a request id and a timeout, and tracks whether it is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int = 499
        """499 until the response starts, for clients that disconnect before that."""
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = f"req_{uuid.uuid4().hex}".encode()
            message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise ClientDisconnect from None
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _require_local(request: Request) -> None:
    host = request.headers.get("Host", "")
    if not _LOCAL_HOST.fullmatch(host):
        message = (
            f"Host {quoted(host)}: use localhost or 127.0.0.1; for other names, start the service "
            "with --api-key-file"
        )
        raise APIError(403, message, code="foreign_host")
