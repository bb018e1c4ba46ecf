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
    NotResumable,
    Overloaded,
    PayloadTooLarge,
    RequestCancelled,
    ResumeConflict,
    ServiceUnavailable,
    StreamGone,
    StreamTakenOver,
    TgqError,
    TooLong,
    UnknownAdapter,
    UnknownModel,
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
    UnknownModel,
    IdempotencyConflict,
    GenerationFailed,
    Overloaded,
    KeyLimited,
    IncompleteGeneration,
    ServiceUnavailable,
    DeadlineExceeded,
    RequestCancelled,
)
"""Of every route that generates."""
RESUME_ERRORS: Errors = (NotResumable, StreamGone, ResumeConflict, StreamTakenOver)
"""Where the answer may be a stream."""

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
    form: dict[str, Any] | None = None
    """The schema of a form, where that is the body."""
    query: dict[str, dict[str, Any]] = {}
    """What may be in the address: name -> description and schema."""
    answer: Any = ()
    """The type of a whole answer, or several; none for an answer without a body or one that is always a stream."""
    media_type: str = "application/json"
    """Of a whole answer."""
    events: Any = ()
    """The type of each event's data, or several, where the answer is or may be a stream."""
    done: bool = False
    """A stream ends with `[DONE]`."""
    resumable: bool = True
    """Where the answer may be a stream: it can be gone on with."""
    headers: tuple[str, ...] = ()
    """Of a successful answer, those that a stream has too."""
    whole_headers: tuple[str, ...] = ()
    """Of a successful answer that is not a stream."""
    idempotent: bool = False
    """Whole answers take an `idempotency-key`."""
    unready: bool = False
    """The answer's status is 503 for as long as it means no."""
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

    @property
    def all_errors(self) -> Errors:
        return self.errors + RESUME_ERRORS if self.event_types and self.resumable else self.errors

    @property
    def request_headers(self) -> list[str]:
        names = ["x-request-id"]
        if self.idempotent:
            names.append("idempotency-key")
        if DeadlineExceeded in self.errors:
            names.append("x-request-timeout")
        if self.event_types and self.resumable:
            names += ["x-tgq-resume", "last-event-id"]
        return names


def _several(kinds: Any) -> tuple[Any, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
