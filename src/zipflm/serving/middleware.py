"""API keys, and middleware around all endpoints: body size, time limits, hosts, request metrics."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.security import HTTPBasic, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zipflm.messages import quoted
from zipflm.serving.metrics import Metrics
from zipflm.serving.schemas import Refusal

BEARER = HTTPBearer(auto_error=False)
BASIC = HTTPBasic(auto_error=False)
_NEED_NO_KEY = ("/health", "/docs", "/openapi.json")


def read_keys(path: str) -> list[bytes]:
    """One key per line."""
    keys = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"--api-key-file {path}: holds no key; write one per line")
    return keys


async def _require_key(request: Request, keys: Sequence[bytes]) -> None:
    try:
        bearer, basic = await BEARER(request), await BASIC(request)
    except HTTPException:  # no password can be read from what was sent
        bearer = basic = None
    given = bearer.credentials if bearer else basic.password if basic else ""
    key = given.encode("latin-1")  # the bytes of the header
    # Compare with all of them, so that the time does not tell which is alike.
    if not any([hmac.compare_digest(key, each) for each in keys]):
        # A browser cannot send a header with the page, but asks for a password if it is told
        # to, and sends that with the page's own requests from then on.
        is_page = request.scope["path"] == "/"
        scheme = 'Basic realm="zipflm: an API key as password"' if is_page else "Bearer"
        raise Refusal(
            401,
            "no valid API key was given",
            code="invalid_api_key",
            headers={"WWW-Authenticate": scheme},
        )


_log = logging.getLogger(__name__)

BODY_SECONDS = 20
"""Time for the body of a request to arrive."""
SEND_SECONDS = 20
"""Time for a client to take a part of an answer; one that does not read counts as gone."""
_MAX_DISCARDED = 1 << 24
"""Bytes beyond the limit that are still read, so that the client receives the reason."""


class Middleware:
    """Reads bodies, and ends the work for clients that disconnect."""

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
        """Requests to other `paths` are counted as one. Of `keys`, if any, requests must have one.

        With `is_local_only`, the `Host` of a request must be local: otherwise a page of any site
        whose name resolves to this machine (DNS rebinding) could read the answers.
        """
        self._app, self._metrics, self._max_body = app, metrics, max_body
        self._paths, self._keys, self._is_local_only = paths, keys, is_local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        sending = _Sending(send)
        try:
            await self._answer(scope, receive, sending)
        except ClientDisconnect:
            self._metrics.clients_left.inc()
        except Exception as error:
            if not sending.is_complete:
                raise
            # Answered with 500, and the connection can be used again.
            _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, sending.status, time.perf_counter() - begun)

    async def _answer(self, scope: Scope, receive: Receive, send: _Sending) -> None:
        request = Request(scope, receive)
        try:
            if self._is_local_only:
                _require_local(request.headers.get("Host", ""))
            # Not `request.url`: older releases of starlette make it from the Host header, too.
            if self._keys and scope["path"] not in _NEED_NO_KEY:
                await _require_key(request, self._keys)
            if request.method != "POST":
                await self._app(scope, receive, send)
                return
            body = await self._body(request)
        except Refusal as refusal:
            await refusal.response(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await asyncio.Future()

        working = asyncio.ensure_future(self._app(scope, replay, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            done: set[asyncio.Task[None]] = set()
            while not done and not send.is_stuck:
                done, _ = await asyncio.wait(
                    (working, leaving), timeout=SEND_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            if working not in done and not send.is_complete:
                raise ClientDisconnect
            await working
        finally:
            leaving.cancel()
            working.cancel()
            await asyncio.wait((working,))

    async def _body(self, request: Request) -> bytes:
        # A page of another site can post forms and plain text here without asking, but not JSON.
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = f"Content-Type {quoted(kind)}: send application/json"
            raise Refusal(415, message, code="unsupported_content_type")
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
            message = f"the body did not arrive within {BODY_SECONDS} seconds"
            raise Refusal(408, message, code="too_slow") from None
        if size > limit:
            message = f"the body has more than {limit} bytes"
            raise Refusal(413, message, code="body_too_large", headers={"Connection": "close"})
        return b"".join(parts)


class _Sending:
    """Sends an answer with a request id, and knows how far it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._since: float | None = None
        """When the message was begun that is being sent."""
        self.status: int = 499
        """Without an answer: the client left."""
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = f"req_{uuid.uuid4().hex}".encode()
            message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
        self._since = time.monotonic()
        await self._send(message)
        self._since = None
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body")

    @property
    def is_stuck(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > SEND_SECONDS


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def is_local_name(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_local(host: str) -> None:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not is_local_name(name):
        message = (
            f"Host {quoted(host)}: use localhost or 127.0.0.1, or start the service with "
            "--api-key-file for other names"
        )
        raise Refusal(403, message, code="foreign_host")
