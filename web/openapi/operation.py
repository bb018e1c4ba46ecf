"""What one method of one route takes and answers, as its documentation tells it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from common.errors import (
    BodyTimeout,
    DeadlineExceeded,
    GenerationFailed,
    IdempotencyConflict,
    IncompleteGeneration,
    InvalidRequest,
    KeyLimited,
    MalformedBody,
    Overloaded,
    PayloadTooLarge,
    ServiceUnavailable,
    TgqError,
    TooLong,
    UnknownAdapter,
    UnsupportedMediaType,
)
from common.protocols.json_body import RequestModel

Errors = tuple[type[TgqError], ...]

BODY_ERRORS: Errors = (MalformedBody, BodyTimeout, PayloadTooLarge, UnsupportedMediaType, InvalidRequest)
"""Of every route that reads a body."""
GENERATION_ERRORS: Errors = (
    *BODY_ERRORS,
    TooLong,
    UnknownAdapter,
    IdempotencyConflict,
    GenerationFailed,
    Overloaded,
    KeyLimited,
    IncompleteGeneration,
    ServiceUnavailable,
    DeadlineExceeded,
)
"""Of every route that generates."""

PROMPT_HEADERS = ("x-compute-type", "x-compute-characters", "x-ignored-parameters")
"""Of every generation that succeeds."""
TIMING_HEADERS = (
    "x-compute-time",
    "x-total-time",
    "x-validation-time",
    "x-queue-time",
    "x-inference-time",
    "x-time-per-token",
    "x-prompt-tokens",
    "x-generated-tokens",
    "idempotent-replayed",
)
"""Of whole answers."""
LIMIT_HEADERS = (
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)
"""Where the caller's key has limits."""


class Operation(Struct, frozen=True, kw_only=True):
    id: str
    """`operationId`: code generators make names of it, so it stays as it is."""
    tag: str
    summary: str
    description: str = ""
    body: type[RequestModel] | tuple[type[RequestModel], ...] = ()
    """The request's model; several where the body's keys decide."""
    answer: Any = ()
    """The type of a whole answer, or several; none for an answer without a body or one that is always a stream."""
    media_type: str = "application/json"
    """Of a whole answer."""
    events: Any = ()
    """The type of each event's data, or several, where the answer is or may be a stream."""
    done: bool = False
    """A stream ends with `[DONE]`."""
    headers: tuple[str, ...] = ()
    """Of a successful answer, those that a stream has too."""
    whole_headers: tuple[str, ...] = ()
    """Of a successful answer that is not a stream."""
    idempotent: bool = False
    """Whole answers take an `idempotency-key`."""
    errors: Errors = ()
    """Beside what every route may answer."""
    example: dict[str, Any] | None = None
    """A body that works as it is."""

    @property
    def bodies(self) -> tuple[type[RequestModel], ...]:
        return _several(self.body)

    @property
    def answers(self) -> tuple[Any, ...]:
        return _several(self.answer)

    @property
    def event_types(self) -> tuple[Any, ...]:
        return _several(self.events)


def _several(kinds: Any) -> tuple[Any, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
