"""Pydantic models of requests, responses and errors. Completions, the list of models and errors
follow the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from starlette.exceptions import HTTPException

from zipflm.messages import quoted

MAX_TEXTS = 256
"""Maximum number of texts per request."""
MAX_ALTERNATIVES = 100


def _as_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError("give a text or a list of texts")
    return [value] if isinstance(value, str) else value


def _as_prompt_list(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a text, token ids, or a list of these")
    return value


# With fail_fast, validation stops at the first error: only one is reported, and a request could
# contain 100,000.
Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[
    list[str],
    Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]
Prompts = Annotated[
    list[str | Ids],
    Field(fail_fast=True, max_length=MAX_TEXTS),
    BeforeValidator(
        _as_prompt_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1000)]],
    Field(fail_fast=True, max_length=16),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]


class BaseRequest(BaseModel):
    """Base class of requests. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, description="A name from /v1/models. Default: the first.")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class ScoreRequest(BaseRequest):
    text: Texts
    prefix: str = Field("", description="Context before every text, not scored.")
    top: int = Field(
        0, ge=0, le=MAX_ALTERNATIVES, description="Number of alternatives to list for each word."
    )
    ranks: bool = Field(
        False,
        description="Include the rank of each word among all words (subword models: among the "
        "alternatives).",
    )
    sources: bool = Field(
        False,
        description="Include the contributions of the model and of its memories to the probability "
        "(only for word models with memories).",
    )
    at: Ids | None = Field(
        None,
        description="Indices of words that get alternatives, ranks and sources. Default: all.",
    )


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class CompletionRequest(BaseRequest):
    prompt: Prompts
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = Field(0, description="Sample from the K most likely tokens (0: all).")
    n: int = Field(1, ge=1, le=MAX_TEXTS)
    seed: int | None = None
    stop: Stops = Field([])
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logprobs: int | None = Field(None, ge=0, le=MAX_ALTERNATIVES)
    echo: bool = False
    lines: int = Field(1, description="Stop after this many lines (0: no limit).")
    best_of: int | None = None
    suffix: str = ""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, Any] = Field({})

    @field_validator("best_of", "suffix", "frequency_penalty", "presence_penalty", "logit_bias")
    @classmethod
    def _reject(cls, value: Any, info: ValidationInfo) -> Any:
        has_no_effect = info.field_name == "best_of" and value == info.data.get("n")
        if value and not has_no_effect:
            raise ValueError("not supported; leave it out")
        return value


class TokenizeRequest(BaseRequest):
    prompt: str


class DetokenizeRequest(BaseRequest):
    tokens: Ids


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: Error


class Alternative(BaseModel):
    word: str
    logprob: float


class Neighbor(BaseModel):
    context: str = Field(description="Words before `word` in the text of the store.")
    word: str


class ProbabilitySource(BaseModel):
    name: Literal["model", "cache", "neighbors"]
    probability: float = Field(
        description="Contribution to the probability of the word, which is the sum over all "
        "sources."
    )
    neighbors: list[Neighbor] = []


class WordScore(BaseModel):
    word: str
    logprob: float = Field(description="In nats.")
    surprisal: float = Field(description="In bits.")
    band: int = Field(
        description="Band of the output layer; 0 for the most frequent words (subword models: the "
        "band of the rarest piece)."
    )
    count: int = Field(
        description="Occurrences in the training text (subword models: of the rarest piece)."
    )
    is_unknown: bool
    is_end: bool
    span: tuple[int, int] | None = Field(description="In code points; null for the end of a line.")
    alternatives: list[Alternative] = []
    rank: int | None = None
    sources: list[ProbabilitySource] = []


class TextScore(BaseModel):
    logprob: float
    perplexity: float | None
    surprisal: float
    words: list[WordScore]


class ScoreResponse(BaseModel):
    model: str
    protocol: dict[str, Any]
    texts: list[TextScore]


class Logprobs(BaseModel):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(BaseModel):
    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: str | None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    """A complete response, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["zipflm"] = "zipflm"
    zipflm: dict[str, Any] = Field(description="Vocabulary, bands and perplexity of the run.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# Codes for errors raised by FastAPI and Starlette.
_CODES = {
    400: "invalid_json",
    401: "invalid_api_key",
    404: "no_such_path",
    405: "method_not_allowed",
}


class APIError(HTTPException):
    """An exception that becomes an error response in the format of the OpenAI API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`param` is the invalid field of the request, and `code` a machine-readable reason."""
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def body(self) -> ErrorResponse:
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        error = Error(message=self.detail, type=kind, param=self.param, code=self.code)
        return ErrorResponse(error=error)

    @property
    def response(self) -> Response:
        content = self.body.model_dump_json() + "\n"
        return Response(content, self.status_code, self.headers, "application/json")


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> APIError:
    return APIError(400, message, param=param, code=code)


async def on_error(request: Request, error: Exception) -> Response:
    """Convert an exception to an error response, as an exception handler of the application."""
    return _as_api_error(request, error).response


def _as_api_error(request: Request, error: Exception) -> APIError:
    if isinstance(error, APIError):
        return error
    if isinstance(error, RequestValidationError):
        return _as_bad_request(error.errors())
    if isinstance(error, HTTPException):
        status = error.status_code
        message = f"{request.method} {quoted(request.url.path)}: {error.detail}"
        if error.__cause__:  # the body could not be parsed
            message += f": {error.__cause__}"
        return APIError(status, message, code=_CODES.get(status), headers=error.headers)
    # Uvicorn logs the error and closes the connection.
    message, headers = "internal error; see the log of the service", {"Connection": "close"}
    return APIError(500, message, code="failed", headers=headers)


def _as_bad_request(errors: Sequence[dict[str, Any]]) -> APIError:
    # For a union, report the error of the type that matched furthest.
    error = max(errors, key=lambda error: len(error["loc"]))
    if error["type"] == "json_invalid":
        reason, offset = error["ctx"]["error"], error["loc"][1]
        return bad_request(
            None, f"the body is not JSON: {reason} at character {offset}", "invalid_json"
        )
    if len(error["loc"]) == 1:
        return bad_request(None, f"the body must be a JSON object; {error['msg']}", "invalid_json")
    field = str(error["loc"][1])
    if error["type"] == "missing":
        return bad_request(field, f"{field}: missing; this field is required", "missing")
    reason = error["msg"].removeprefix("Value error, ")
    return bad_request(field, f"{field}={quoted(error['input'])}: {reason}")
