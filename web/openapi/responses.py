"""What an operation may answer: its success and every error, each in the form of its API."""

from __future__ import annotations

import inspect
from http import HTTPStatus
from typing import Any

import falcon
from msgspec import Struct

from common.errors import TgqError, Unauthorized
from common.protocols import open_inference_answer, openai_errors, tgi_answer
from common.protocols.dialects import ErrorForm, error_form
from common.settings import Settings
from web import sse
from web.openapi.headers import references
from web.openapi.operation import LIMIT_HEADERS, Operation
from web.openapi.schemas import Schemas

_STRUCTS: dict[ErrorForm, type[Struct]] = {
    tgi_answer.error_body: tgi_answer.ErrorResponse,
    openai_errors.error_body: openai_errors.OpenAIErrorResponse,
    open_inference_answer.error_body: open_inference_answer.ErrorResponse,
}
_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def error_struct(path: str, settings: Settings) -> type[Struct]:
    """The form of a route's errors."""
    return _STRUCTS[error_form(path, settings)]


class Responses:
    def __init__(self, schemas: Schemas, settings: Settings) -> None:
        self._schemas = schemas
        self._settings = settings

    def of(self, path: str, operation: Operation, *, protected: bool) -> dict[str, Any]:
        """By status."""
        errors: set[type[TgqError]] = {TgqError, *operation.all_errors, *([Unauthorized] if protected else [])}
        by_status: dict[int, list[type[TgqError]]] = {}
        for error in sorted(errors, key=lambda error: (error.status, error.__name__)):
            by_status.setdefault(error.status, []).append(error)
        schema = self._schemas.of(error_struct(path, self._settings))
        told = {str(status): self._error(status, kinds, schema, operation) for status, kinds in by_status.items()}
        success = self._success(operation, protected=protected)
        if operation.unready:
            headers = references("x-request-id", "retry-after")
            told[str(HTTPStatus.SERVICE_UNAVAILABLE.value)] = success | {"description": "Not yet.", "headers": headers}
        return {"200": success, **told}

    def _success(self, operation: Operation, *, protected: bool) -> dict[str, Any]:
        limits = LIMIT_HEADERS if protected and operation.headers else ()
        headers = references("x-request-id", *operation.headers, *operation.whole_headers, *limits)
        content = {}
        if operation.answers:
            content[operation.media_type] = {"schema": self._schemas.of(*operation.answers)}
        if operation.event_types:
            content[sse.CONTENT_TYPE] = {"schema": self._schemas.of(*operation.event_types)}
        response: dict[str, Any] = {"description": _success_description(operation), "headers": headers}
        return response | ({"content": content} if content else {})

    @staticmethod
    def _error(
        status: int, kinds: list[type[TgqError]], schema: dict[str, Any], operation: Operation
    ) -> dict[str, Any]:
        headers = ["x-request-id"]
        if status in _RETRIED:
            headers.append("retry-after")
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append("www-authenticate")
        if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            headers.append("accept-encoding")
        media = [falcon.MEDIA_JSON] + ([sse.CONTENT_TYPE] if operation.event_types else [])
        return {
            "description": " ".join(_meaning(kind) for kind in kinds),
            "headers": references(*headers),
            "content": {kind: {"schema": schema} for kind in media},
        }


def _success_description(operation: Operation) -> str:
    parts = []
    if operation.answers:
        parts.append("The answer.")
    if operation.event_types:
        parts.append("A stream of events; each one's data has this schema.")
        if operation.done:
            parts.append("The last event's data is `[DONE]`.")
    return " ".join(parts) or "Yes; there is no body."


def _meaning(error: type[TgqError]) -> str:
    if error is TgqError:
        return "Something went wrong inside the service."
    text = " ".join(inspect.cleandoc(error.__doc__ or "").split())
    return text[:1].upper() + text[1:]
