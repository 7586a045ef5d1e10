"""API keys: a bearer token for programs, a password for browsers."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import (
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
)

from zipflm.serving.errors import Refusal

Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]
Basic = Annotated[HTTPBasicCredentials | None, Security(HTTPBasic(auto_error=False))]


def read_keys(path: str) -> list[bytes]:
    """One key per line."""
    keys = [line.strip() for line in Path(path).read_bytes().splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"--api-key-file {path}: holds no key; write one per line")
    return keys


def key_check(keys: Sequence[bytes]) -> Callable[..., Awaitable[None]]:
    """A dependency that refuses requests without one of these keys; `/health` needs none."""

    async def require_key(request: Request, bearer: Bearer, basic: Basic) -> None:
        if request.url.path == "/health":
            return
        given = bearer.credentials if bearer else basic.password if basic else ""
        key = given.encode("latin-1")  # the bytes of the header
        # Compare with all of them, so that the time does not tell which is alike.
        if not any([hmac.compare_digest(key, each) for each in keys]):
            # A browser cannot send a header with the page, but asks for a password if it is told
            # to, and sends that with the page's own requests from then on.
            is_page = request.url.path == "/"
            scheme = 'Basic realm="zipflm: an API key as password"' if is_page else "Bearer"
            raise Refusal(
                401,
                "no valid API key was given",
                code="invalid_api_key",
                headers={"WWW-Authenticate": scheme},
            )

    return require_key
