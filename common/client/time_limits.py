"""How long one request may take, by monotonic time."""

from __future__ import annotations

import math

import msgspec

from common.settings import Settings
from common.wire import Job

SILENT_STALLS = 3.0
"""Stall limits after which silence is an error whatever the reason: Redis that comes and goes, for example."""


class TimeLimits:
    __slots__ = ("_queue_wait", "_queued_until", "stall", "total_at")

    def __init__(self, job: Job, settings: Settings, timeout: float | None, now: float, unix_now: float) -> None:
        """
        Args:
            timeout: seconds from now in which the request must be finished.
        """
        self._queue_wait = settings.queue_timeout if job.deadline is None else job.deadline - unix_now
        self._queued_until = now + self._queue_wait
        self.total_at = math.inf if timeout is None else now + timeout
        # Batch jobs give way to interactive ones, even when they run: they may be silent for as long as they may wait.
        patience = self._queue_wait if job.job_class == "batch" else 0.0
        self.stall = max(settings.stall_timeout, patience)
        """Seconds that a worker may be silent."""

    @property
    def too_long_silence(self) -> float:
        return SILENT_STALLS * self.stall

    def waits_again(self, now: float) -> None:
        """A worker had it, and the next one may be as long in coming."""
        self._queued_until = now + self._queue_wait

    def waited_too_long(self, now: float) -> bool:
        """Whether a worker should have taken it."""
        return now >= self._queued_until

    def left_to_wait(self, now: float) -> float:
        """Seconds in which a worker must take it."""
        return max(min(self._queued_until, self.total_at) - now, 0.0)


def with_deadline(job: Job, timeout: float | None, unix_now: float) -> Job:
    """A job that does not begin after its time."""
    if timeout is None or (job.deadline is not None and job.deadline <= unix_now + timeout):
        return job
    return msgspec.structs.replace(job, deadline=unix_now + timeout)
