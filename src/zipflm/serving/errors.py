"""Errors in OpenAI's shape, for refused requests and for failures of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zipflm.quoting import quoted
from zipflm.serving.schemas import Error, ErrorAnswer

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# Of errors that FastAPI and Starlette raise.
_CODES = {400: "invalid_json", 401: "invalid_api_key", 404: "no_such_path", 405: "no_such_path"}


class Refusal(HTTPException):
    """An answer other than 200, with the reason."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`param` is the field of the request that is at fault; `code` is for programs."""
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def answer(self) -> ErrorAnswer:
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        error = Error(message=self.detail, type=kind, param=self.param, code=self.code)
        return ErrorAnswer(error=error)

    @property
    def response(self) -> Response:
        content = self.answer.model_dump_json() + "\n"
        return Response(content, self.status_code, self.headers, "application/json")


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> Refusal:
    return Refusal(400, message, param=param, code=code)


async def on_error(request: Request, error: Exception) -> Response:
    """The exception handler of the application, for everything that is raised in it."""
    return _refusal(request, error).response


def _refusal(request: Request, error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        status = error.status_code
        message = f"{request.method} {quoted(request.url.path)}: {error.detail}"
        if error.__cause__:  # a body that cannot be parsed
            message += f": {error.__cause__}"
        return Refusal(status, message, code=_CODES.get(status), headers=error.headers)
    return Refusal(500, "the service failed; its log says why", code="failed")


def _invalid(errors: Sequence[dict[str, Any]]) -> Refusal:
    """The first field that pydantic complains about."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason, place = first["ctx"]["error"], first["loc"][1]
        return bad_request(None, f"the body is not JSON: {reason} at {place}", "invalid_json")
    if len(first["loc"]) == 1:
        return bad_request(None, f"the body must be a JSON object; {first['msg']}", "invalid_json")
    field = str(first["loc"][1])
    if first["type"] == "missing":
        return bad_request(field, f"{field}: missing; this field is required", "missing")
    # Of the choices of a union the one that got furthest tells most.
    of_field = [error for error in errors if error["loc"][1] == field]
    error = max(of_field, key=lambda each: len(each["loc"]))
    reason = error["msg"].removeprefix("Value error, ")
    return bad_request(field, f"{field}={quoted(error['input'])}: {reason}")
