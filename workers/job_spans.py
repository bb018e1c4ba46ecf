"""The spans of a job while a worker holds it: `process QUEUE` with its children `queued`, `prefill` and `decode`.

They are made when the job ends, from moments noted meanwhile and from what the engine tells with the last token, so that a
job under way costs next to nothing. Those of a worker that is killed are lost with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.keys import Keys
from common.tracing.message import message_attributes
from common.wire import Cancelled, Failed, FrameBody, Job, Tokens

if TYPE_CHECKING:
    from common.tracing.tracing import Tracing


@dataclass(slots=True)
class Moments:
    """What happened to one job, in Unix nanoseconds; 0 until it did."""

    queue: str
    """Where it came from."""
    taken: int
    accepted: int = 0
    """By the engine."""
    first_token: int = 0
    generated: int = 0
    """Tokens."""
    last: FrameBody | None = None
    """The newest frame."""

    def accept(self) -> None:
        """An engine has the job; perhaps another one after the first was lost."""
        self.accepted, self.first_token, self.generated = time.time_ns(), 0, 0

    def heard(self, body: FrameBody) -> None:
        """The job's next frame."""
        if isinstance(body, Tokens):
            if body.tokens and not self.first_token:
                self.first_token = time.time_ns()
            self.generated += len(body.tokens)
        self.last = body


class JobSpans:
    """Thread-safe; never waits."""

    def __init__(self, tracing: Tracing, keys: Keys) -> None:
        self._tracing = tracing
        self._keys = keys

    def taken(self, job: Job) -> Moments:
        """A job is held from now on."""
        return Moments(self._keys.queue(job.model, job.job_class), time.time_ns())

    def ended(self, job: Job, tag: str, moments: Moments) -> None:
        """It is held no longer, however that came about.

        Args:
            tag: of its delivery.
        """
        now = time.time_ns()
        outcome, error = _outcome(moments.last)
        attributes = {
            **message_attributes(job, moments.queue, tag),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "gen_ai.usage.output_tokens": moments.generated or None,
            "tgq.outcome": outcome,
        }
        tracing = self._tracing
        span = tracing.begin(f"process {moments.queue}", "consumer", job.trace, attributes, at=moments.taken)
        if error is not None:
            span.fail(error)
        for name, begin, end in stages(moments, job.sent_at, now):
            tracing.begin(name, "internal", span, at=begin).end(end)
        span.end(now)


def stages(moments: Moments, sent_at: float | None, ended: int) -> list[tuple[str, int, int]]:
    """What a job spent its time with: name, begin and end, without the stages it did not come to.

    `queued` begins when the submitter sent it, by the submitter's clock, which may be before its worker took it. `prefill`
    begins when the engine began with it, as the engine tells at its end. It does not of a job that was broken off, which then
    counts as begun when it was accepted.
    """
    queued = moments.taken if sent_at is None else min(int(sent_at * 1e9), moments.taken)
    if not moments.accepted:
        return [("queued", queued, ended)]
    first = moments.first_token or ended
    finish = moments.last.finish if isinstance(moments.last, Tokens) else None
    begun = moments.accepted if finish is None else ended - int(finish.inference_seconds * 1e9)
    begun = min(max(begun, moments.taken), first)
    found = [("queued", queued, begun), ("prefill", begun, first)]
    return [*found, ("decode", first, ended)] if moments.first_token else found


def _outcome(last: FrameBody | None) -> tuple[str, str | None]:
    """How it ended, and of what kind the error was."""
    match last:
        case Tokens() if last.ends:
            return "finished", None
        case Failed(handed_over=True):
            return "handed_over", None
        case Failed():
            return "failed", last.error_type
        case Cancelled():
            return "cancelled", None
        case _:
            return "returned", None
