"""Errors as OpenAI's API tells them."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from common.errors import (
    IdempotencyConflict,
    InvalidRequest,
    MalformedBody,
    NotFound,
    Overloaded,
    TgqError,
    TooLong,
    Unauthorized,
    UnknownAdapter,
    UnknownBatch,
    UnknownFile,
    UnknownModel,
)

_NAMED = re.compile(r"`([A-Za-z0-9_.\[\]]+)`")
_CODES: dict[type[TgqError], str] = {
    Unauthorized: "invalid_api_key",
    UnknownModel: "model_not_found",
    UnknownAdapter: "model_not_found",
    TooLong: "context_length_exceeded",
    Overloaded: "rate_limit_exceeded",
    IdempotencyConflict: "idempotency_key_reused",
}
"""`code` where OpenAI has a word for it; elsewhere our own `error_type`."""


class OpenAIError(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    """The field that is at fault."""
    code: str | None


class OpenAIErrorResponse(Struct, frozen=True):
    error: OpenAIError


def error_response(error: TgqError) -> OpenAIErrorResponse:
    param = None
    if isinstance(error, InvalidRequest) and (named := _NAMED.search(error.message)):
        param = named[1]
    if isinstance(error, UnknownModel):
        param = "model"
    if isinstance(error, (UnknownFile, UnknownBatch)):
        param = error.field if isinstance(error, UnknownFile) else "id"
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), error.error_type)
    return OpenAIErrorResponse(OpenAIError(error.message, _kind(error), param, code))


def error_body(error: TgqError) -> bytes:
    return msgspec.json.encode(error_response(error))


def _kind(error: TgqError) -> str:
    match error:
        case Unauthorized():
            return "authentication_error"
        case NotFound() | InvalidRequest() | MalformedBody():
            return "invalid_request_error"
        case IdempotencyConflict():
            return "idempotency_error"
        case Overloaded():
            return "rate_limit_error"
        case _:
            return "invalid_request_error" if error.status < 500 and error.status != 424 else "server_error"
