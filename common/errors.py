"""Every error a caller can meet.

TgqError
├── InvalidRequest            422  validation
│   ├── BadRequest            400  validation
│   ├── TooLong               422  validation
│   └── UnknownAdapter        422  validation
├── TemplateError             422  template_error
├── MalformedBody             400  validation
├── UnsupportedMediaType      415  validation
├── BodyTimeout               408  timeout
├── PayloadTooLarge           413  validation
├── Unauthorized              401  unauthorized
├── NotFound                  404  not_found
│   ├── RouteNotFound         404  not_found
│   ├── UnknownModel          404  not_found
│   ├── UnknownModelVersion   404  not_found
│   ├── UnknownRequest        404  not_found
│   ├── UnknownFile           404  not_found
│   ├── UnknownBatch          404  not_found
│   └── NotResumable          404  not_found
├── MethodNotAllowed          405  method_not_allowed
├── StreamGone                410  gone
├── Overloaded                429  overloaded
│   └── KeyLimited            429  overloaded
├── IdempotencyConflict       422  validation
├── ResumeConflict            422  validation
├── RequestCancelled          499  cancelled
│   └── StreamTakenOver       499  taken_over
├── GenerationFailed          424  generation
├── IncompleteGeneration      500  incomplete_generation
├── DeadlineExceeded          504  timeout
├── Unhealthy                 503  healthcheck
└── ServiceUnavailable        503  unavailable
    └── StorageUnavailable    503  unavailable

`status` is the HTTP status, `error_type` the machine word that native TGI clients switch on and that crosses Redis.
"""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_NAME = 200
"""Characters of a client's name for something that an error repeats."""


class TgqError(Exception):
    """Something went wrong inside the service."""

    status = 500
    error_type = "internal"

    reason: str | None = None
    """Why a request ended, in one word for logs and metrics, where the class does not say it: `queue_wait`, `stall`, `total`
    (its time limits), `attempts` (too many were lost), `redis` (away too long), `slow_reader`, `cancelled`, `closed` (its
    client left), `shutdown` (its web node stopped) or `worker` (frames that make no sense)."""

    def __init__(
        self, message: str | None = None, *, retry_after: int | None = None, reason: str | None = None
    ) -> None:
        self.message = message if message is not None else (type(self).__doc__ or "").strip().rstrip(".")
        if reason is not None:
            self.reason = reason
        self.retry_after = retry_after
        """Whole seconds after which a retry makes sense (the `Retry-After` header), if known."""
        super().__init__(self.message)


class InvalidRequest(TgqError):
    """The request breaks a rule; nothing was queued. The message says which field and which limit."""

    status = 422
    error_type = "validation"

    def __init__(self, reason: str) -> None:
        # TGI's clients and tests match on this prefix.
        super().__init__(f"Input validation error: {reason}")


class BadRequest(InvalidRequest):
    """The request breaks a rule of OpenAI's files and batches, which are refused with the status that is theirs."""

    status = 400

    def __init__(self, message: str) -> None:
        TgqError.__init__(self, message)


class TooLong(InvalidRequest):
    """The prompt, or prompt and answer, do not fit the context."""


class UnknownAdapter(InvalidRequest):
    """No adapter of this name: refused, never served by the model as it is."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        there = ", ".join(f"`{adapter}`" for adapter in sorted(known)) or "none"
        super().__init__(f"`adapter_id` names `{_short(name)}`, which is not loaded; there are: {there}")


class TemplateError(TgqError):
    """The model's chat template cannot make a prompt of the messages; the reason is the template's own."""

    status = 422
    error_type = "template_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Template error: {reason}")


class MalformedBody(TgqError):
    """The body is not JSON."""

    status = 400
    error_type = "validation"


class UnsupportedMediaType(TgqError):
    """Expected request with `Content-Type: application/json`."""

    status = 415
    error_type = "validation"


class BodyTimeout(TgqError):
    """The body did not arrive in time."""

    status = 408
    error_type = "timeout"


class PayloadTooLarge(TgqError):
    """The body is larger than this server takes."""

    status = 413
    error_type = "validation"


class Unauthorized(TgqError):
    """A valid bearer key is required."""

    status = 401
    error_type = "unauthorized"


class NotFound(TgqError):
    """There is no such thing."""

    status = 404
    error_type = "not_found"


class RouteNotFound(NotFound):
    """There is nothing at this path."""


class UnknownModel(NotFound):
    """No live worker serves a model of this name, and no adapter has it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The model `{_short(name)}` does not exist")


class UnknownModelVersion(NotFound):
    """The model has no version of this name."""

    def __init__(self, name: str, version: str, known: Iterable[str]) -> None:
        there = ", ".join(f"`{one}`" for one in known)
        super().__init__(f"The model `{_short(name)}` has no version `{_short(version)}`; there are: {there}")


class UnknownRequest(NotFound):
    """No request of yours with this id is under way."""


class UnknownFile(NotFound):
    """There is no such file of yours, or not any more."""

    def __init__(self, file_id: str, field: str = "id") -> None:
        self.field = field
        """Of the request, that names it."""
        super().__init__(f"No such file: `{_short(file_id)}`")


class UnknownBatch(NotFound):
    """There is no such batch of yours, or not any more."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"No such batch: `{_short(batch_id)}`")


class NotResumable(NotFound):
    """There is no stream of yours with this `x-request-id` and `last-event-id` to go on with."""


class MethodNotAllowed(TgqError):
    """This path does not take that method."""

    status = 405
    error_type = "method_not_allowed"


class StreamGone(TgqError):
    """The stream with this `x-request-id` is not kept any more."""

    status = 410
    error_type = "gone"


class Overloaded(TgqError):
    """Model is overloaded."""

    status = 429
    error_type = "overloaded"


class KeyLimited(Overloaded):
    """A limit of the caller's API key is reached."""


class IdempotencyConflict(TgqError):
    """This `idempotency-key` was used for another request; send each request with a key of its own."""

    status = 422
    error_type = "validation"


class ResumeConflict(TgqError):
    """The stream with this `x-request-id` is another request's; send the same body to go on with it."""

    status = 422
    error_type = "validation"


class RequestCancelled(TgqError):
    """The request was cancelled."""

    status = 499  # what gRPC's CANCELLED becomes in HTTP; clients try 409 and 5xx again by themselves
    error_type = "cancelled"
    reason = "cancelled"


class StreamTakenOver(RequestCancelled):
    """The stream was taken over by another connection."""

    error_type = "taken_over"
    reason = "taken_over"


class GenerationFailed(TgqError):
    """The worker failed while it generated."""

    status = 424
    error_type = "generation"
    prefix = "Request failed during generation: "

    def __init__(self, reason: str) -> None:
        super().__init__(self.prefix + reason)


class IncompleteGeneration(TgqError):
    """Incomplete generation."""

    status = 500
    error_type = "incomplete_generation"


class DeadlineExceeded(TgqError):
    """The request's time was over before it was finished."""

    status = 504
    error_type = "timeout"


class Unhealthy(TgqError):
    """unhealthy."""

    status = 503
    error_type = "healthcheck"


class ServiceUnavailable(TgqError):
    """The service cannot take requests right now."""

    status = 503
    error_type = "unavailable"


class StorageUnavailable(ServiceUnavailable):
    """The storage of files cannot be used."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__("The storage of files cannot be used right now" + (f": {reason}" if reason else ""))


_FROM_WORKER: dict[str, type[TgqError]] = {
    cls.error_type: cls
    for cls in (
        InvalidRequest,
        Overloaded,
        GenerationFailed,
        IncompleteGeneration,
        DeadlineExceeded,
        ServiceUnavailable,
    )
}


def error_from_worker(error_type: str, message: str) -> TgqError:
    """The exception for a `Failed` frame: its class by `error_type`, its message as the worker wrote it."""
    cls = _FROM_WORKER.get(error_type, TgqError)
    error = cls.__new__(cls)
    TgqError.__init__(error, message)
    return error


def error_kind(error: BaseException) -> str:
    """What to call an error where its words, which may quote what callers sent, are not told."""
    return error.error_type if isinstance(error, TgqError) else type(error).__name__


def _short(name: str) -> str:
    """A name as a client made it up, which may be as long as a body."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
