"""What is known of one generation request: counted and logged once, when it is over."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal

import structlog

from common.client.timings import Timings
from common.errors import (
    DeadlineExceeded,
    GenerationFailed,
    IdempotencyConflict,
    IncompleteGeneration,
    InvalidRequest,
    KeyLimited,
    Overloaded,
    RequestCancelled,
    ServiceUnavailable,
    TgqError,
)
from common.metrics import WebMetrics
from common.tracing.call_span import CallSpan
from common.validation import ValidRequest
from common.wire import Finish, Tokens
from web.disconnect import RequestLifetime

Phase = Literal["admission", "validation", "dispatch", "queue", "prefill", "decode"]

log = structlog.get_logger(__name__)

_FAILURES: dict[type[TgqError], str] = {
    # TGI's words where it has one
    KeyLimited: "rate_limited",  # before what it is a kind of
    Overloaded: "overloaded",
    InvalidRequest: "validation",
    IdempotencyConflict: "validation",
    GenerationFailed: "generation",
    IncompleteGeneration: "incomplete",
    DeadlineExceeded: "timeout",
    ServiceUnavailable: "unavailable",
    RequestCancelled: "cancelled",
}
_TIME_LIMITS = ("queue_wait", "stall", "total")


class RequestRecord:
    """Context of one request, from its parsed body to its end."""

    def __init__(
        self,
        metrics: WebMetrics,
        lifetime: RequestLifetime,
        *,
        request_id: str,
        route: str,
        tenant: str = "",
        trace_id: str = "",
    ) -> None:
        self.cause: str | None = None
        """How it ended, once it did."""
        self.reason: str | None = None
        """See `TgqError.reason`."""
        self.timings: Timings | None = None
        self.prompt_tokens = 0
        """Of all prompts, once they are validated."""
        self.finish: Finish | None = None
        self.span: CallSpan | None = None
        """Of a request that is traced, once its model is known."""
        self._metrics = metrics
        self._lifetime = lifetime
        self._request_id = request_id
        self._route = route
        self._tenant = tenant
        self._trace_id = trace_id
        self._failed = False
        self._stream = False
        self._arrived = self._phase_since = time.monotonic()
        self._phase: Phase = "admission"
        self._tokens = 0
        self._last_tokens = 0.0
        self._ended = 0.0

    def __enter__(self) -> RequestRecord:
        self._metrics.request_count.inc()
        self._metrics.in_flight.inc()
        return self

    def streams(self) -> None:
        """The answer is to be a stream."""
        self._stream = True
        self._metrics.streams.inc()

    def entered(self, phase: Phase) -> None:
        """A phase begins and the one before it has ended."""
        now = time.monotonic()
        if self._phase in ("admission", "validation", "dispatch"):
            self._metrics.hop(self._phase, now - self._phase_since)
        self._phase, self._phase_since = phase, now

    def validated(self, valid: ValidRequest) -> None:
        self.prompt_tokens += len(valid.prompt_ids)
        self._metrics.input_length.observe(len(valid.prompt_ids))
        self._metrics.max_new_tokens.observe(valid.parameters.max_new_tokens)
        if self.span is not None:
            self.span.validated(valid)

    def dispatched(self, timings: Timings) -> None:
        self.entered("queue")
        self.timings = timings

    def received(self, tokens: Tokens) -> None:
        """Tokens arrived; called once for all that arrived together."""
        now = time.monotonic()
        count = len(tokens.tokens)
        if count:
            if self._tokens:
                self._metrics.inter_token.observe((now - self._last_tokens) / count, count)
            else:
                self._metrics.time_to_first_token.observe(now - self._arrived)
            self._tokens += count
            self._last_tokens = now
        if self.span is not None:
            self.span.received(tokens)
        if tokens.ends:
            self.finish = tokens.finish
            self._succeeded(now)

    def replayed(self) -> None:
        """The answer is that of an earlier call."""
        self._end("replayed")

    def failed(self, error: TgqError) -> None:
        """The request ended with an error that its client is told."""
        if self.cause is not None:
            return
        kind = next((kind for cls, kind in _FAILURES.items() if isinstance(error, cls)), "internal")
        self._end(error.error_type)
        self._failed = True
        # A worker that finds a job too late to begin gives no reason.
        self.reason = error.reason or ("queue_wait" if isinstance(error, DeadlineExceeded) else None)
        self._metrics.request_failure.labels(kind).inc()
        if self.reason in _TIME_LIMITS:
            self._metrics.deadline_exceeded.labels(self.reason).inc()
        if self.timings is None:
            self._metrics.rejected.labels(kind).inc()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._metrics.in_flight.dec()
        if self._stream:
            self._metrics.streams.dec()
        if self.cause is None:
            # Neither finished nor failed: its client went away, or this process ends.
            self._end(self._lifetime.gone or "aborted")
            self._metrics.request_failure.labels("dropped").inc()
            self._metrics.cancelled.labels(self.phase).inc()
        if self.span is not None:
            cause = self.cause or ""
            self.span.end(cause, cause if self._failed else None)
        log.info("request", **self._summary())

    @property
    def phase(self) -> Phase:
        """Where the request is, as finely as its frames tell."""
        if self._phase != "queue" or self.timings is None or self.timings.accepted is None:
            return self._phase
        return "prefill" if self.timings.first_token is None else "decode"

    @property
    def spent_tokens(self) -> int:
        """Of the prompts and generated so far, of a request that was queued."""
        return self.prompt_tokens + self._tokens if self.timings is not None else 0

    # -- figures of a finished request, in seconds

    @property
    def total_seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._arrived

    @property
    def validation_seconds(self) -> float:
        """From arrival to the queue, as TGI counts it: admission and tokenizing together."""
        return self.timings.submitted - self._arrived if self.timings is not None else 0.0

    @property
    def inference_seconds(self) -> float:
        return self.finish.inference_seconds if self.finish is not None else 0.0

    @property
    def queue_seconds(self) -> float:
        """What is neither validation nor inference: waiting, and the way there and back."""
        return max(self.total_seconds - self.validation_seconds - self.inference_seconds, 0.0)

    def _succeeded(self, now: float) -> None:
        self._end("finished", now)
        metrics, finish, timings = self._metrics, self.finish, self.timings
        assert finish is not None
        assert timings is not None
        metrics.request_success.inc()
        metrics.request_duration.observe(self.total_seconds)
        metrics.validation_duration.observe(self.validation_seconds)
        metrics.queue_duration.observe(self.queue_seconds)
        metrics.inference_duration.observe(finish.inference_seconds)
        metrics.mean_time_per_token.observe(finish.inference_seconds / max(finish.generated_tokens, 1))
        metrics.generated_tokens.observe(finish.generated_tokens)
        if timings.queued is not None and timings.accepted is not None:
            metrics.hop("queue", timings.accepted - timings.queued)
            metrics.hop("relay", now - timings.accepted - finish.inference_seconds)

    def _end(self, cause: str, now: float | None = None) -> None:
        self.cause = cause
        self._ended = time.monotonic() if now is None else now

    def _summary(self) -> dict[str, object]:
        summary: dict[str, object] = {
            "cause": self.cause,
            "request_id": self._request_id,
            "route": self._route,
            "stream": self._stream,
            "generated_tokens": self._tokens,
            "total_ms": round(self.total_seconds * 1000),
        }
        if self.reason is not None:
            summary["reason"] = self.reason
        if self._trace_id:
            summary["trace_id"] = self._trace_id
        if self._tenant:
            summary["key"] = self._tenant
        if self.finish is None:
            summary["phase"] = self.phase
        if self.prompt_tokens:
            summary["prompt_tokens"] = self.prompt_tokens
        if self.timings is not None:
            summary["validation_ms"] = round(self.validation_seconds * 1000)
        if self.finish is not None:
            summary["finish_reason"] = self.finish.reason
            summary["queue_ms"] = round(self.queue_seconds * 1000)
            summary["inference_ms"] = round(self.inference_seconds * 1000)
        return summary
