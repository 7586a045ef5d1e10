"""Who may come in: around all paths the key, the count, and an answer in the right shape."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import time
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zipflm.quoting import quoted
from zipflm.serving.errors import Refusal
from zipflm.serving.messages import refused
from zipflm.serving.metrics import Metrics

_OPEN = "/health"
"""The one path that needs no key."""
_PAGE = "/"
"""A browser cannot be given a header for the page, but asks for a password if it is told to, and
sends that with the page's own requests from then on."""


class Door:
    """Around all paths: the key, the count, and an answer in the right shape whatever happens."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        keys: Sequence[bytes],
        paths: set[str],
        *,
        is_local: bool,
    ) -> None:
        """With `is_local`, only requests to a local `Host` are taken: otherwise a page of any site
        whose name resolves to this machine (DNS rebinding) could read the answers. It does not
        know a key, so where there are keys a proxy may pass on any name."""
        self._app, self._metrics, self._keys, self._paths = app, metrics, keys, paths
        self._checks_host = is_local and not keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499  # nobody waited for an answer
        request_id = f"req_{uuid.uuid4().hex}".encode()

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if self._checks_host and not is_local_name(_host_name(host)):
                message = (
                    f"Host {quoted(host)}: use localhost or 127.0.0.1, or start the service with "
                    "--api-key-file for other names"
                )
                answer = refused(Refusal(403, message, code="foreign_host"))
                await answer(scope, receive, sent)
            elif self._is_locked(scope):
                refusal = Refusal(401, "no valid API key was given", code="invalid_api_key")
                answer = refused(refusal)
                is_page = scope["path"] == _PAGE
                kind = 'Basic realm="zipflm: an API key as password"' if is_page else "Bearer"
                answer.headers["WWW-Authenticate"] = kind
                await answer(scope, receive, sent)
            else:
                await self._app(scope, receive, sent)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, status, time.perf_counter() - begun)

    def _is_locked(self, scope: Scope) -> bool:
        if not self._keys or scope["path"] == _OPEN:
            return False
        key = _given_key(dict(scope["headers"]).get(b"authorization", b""))
        # All of them, so that the time says nothing about which is alike.
        found = [hmac.compare_digest(key, each) for each in self._keys]
        return not any(found)


def is_local_name(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _given_key(header: bytes) -> bytes:
    """The key of an `Authorization` header, or the password that a browser sends; else nothing."""
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
