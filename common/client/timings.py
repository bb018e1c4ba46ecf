"""When a request passed each stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """Moments of one request on this process's monotonic clock, in seconds; None until it came to that."""

    submitted: float
    """The caller handed the job over."""
    queued: float | None = None
    """Redis confirmed that the job is in its queue."""
    accepted: float | None = None
    """The first word of a worker's engine about the job arrived."""
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    """The stream ended: its last token, its error, or its reader left."""
