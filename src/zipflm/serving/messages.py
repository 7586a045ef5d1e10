"""What goes over the wire: a request's body in, JSON, refusals and events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Send

from zipflm.quoting import quoted
from zipflm.serving.errors import Refusal

WARNING_HEADER = "X-Zipflm-Warning"
_BODY_SECONDS = 20
"""In which a request's body must be here."""
_SEND_SECONDS = 20
"""In which a client must take a part of a stream; one that does not read is as good as gone."""
_MOST_DISCARDED = 1 << 24
"""Bytes beyond the limit that are read, so that a client gets to hear why it was refused."""


class ClientLeft(Exception):
    """Nobody is there to read an answer."""


async def read_body(request: Request, limit: int) -> bytes:
    # A page of another site can post forms and plain text here without asking, but not JSON.
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"Content-Type {quoted(kind)}: send application/json"
        raise Refusal(415, message, code="unsupported_content_type")
    too_large = Refusal(413, f"the body has more than {limit} bytes", code="body_too_large")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > limit + _MOST_DISCARDED:
                    raise too_large
    except ClientDisconnect:
        raise ClientLeft from None
    except TimeoutError:
        raise Refusal(
            408, f"the body did not come within {_BODY_SECONDS} seconds", code="too_slow"
        ) from None
    if size > limit:
        raise too_large
    return b"".join(parts)


async def send_event(send: Send, value: Any) -> None:
    body = b"data: " + json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


def json_answer(
    value: Any, headers: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    # ASCII: half of a UTF-16 pair, which a refused request may hold, has no UTF-8.
    text = json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"
    return Response(text, status, dict(headers or {}), media_type="application/json")


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    return {WARNING_HEADER: "; ".join(warnings)} if warnings else {}


def refused(refusal: Refusal) -> Response:
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    if refusal.status == 413:
        headers["Connection"] = "close"
    return json_answer(refusal.as_dict(), headers, refusal.status)
