"""Refusals: what a client did wrong, or what the service cannot do now, in OpenAI's error shape."""

from __future__ import annotations

from typing import Any

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class Refusal(Exception):
    """An answer other than 200, with its reason."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """`param` is the field of the request that is at fault; `code` names the fault for
        programs; after `retry_after` seconds the same request may succeed."""
        super().__init__(message)
        self.status: int = status
        self.message: str = message
        self.param: str | None = param
        self.code: str | None = code
        self.retry_after = retry_after

    def as_dict(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> Refusal:
    return Refusal(400, message, param=param, code=code)
