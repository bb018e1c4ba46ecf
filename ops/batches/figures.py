"""How fast a batch goes, from what was seen of it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from common.batches.objects import BatchObject

LOOK_BACK_SECONDS = 30.0


class _Seen(NamedTuple):
    at: float
    lines: int
    tokens: int


class Figures:
    """Rates over the last half minute."""

    def __init__(self) -> None:
        self.total = self.done = self.failed = self.tokens = 0
        self._seen: deque[_Seen] = deque()

    def see(self, batch: BatchObject, now: float) -> None:
        """The batch as it is at `now` (monotonic seconds)."""
        counts = batch.request_counts
        self.total, self.failed, self.done = counts.total, counts.failed, counts.completed + counts.failed
        self.tokens = batch.usage.output_tokens if batch.usage else 0
        self._seen.append(_Seen(now, self.done, self.tokens))
        while len(self._seen) > 2 and self._seen[1].at <= now - LOOK_BACK_SECONDS:
            self._seen.popleft()

    @property
    def tokens_per_second(self) -> float:
        first, last = self._seen[0], self._seen[-1]
        return (last.tokens - first.tokens) / (last.at - first.at) if last.at > first.at else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until all lines are done; None while nobody knows."""
        if not self._seen or not self.total:
            return None
        first, last = self._seen[0], self._seen[-1]
        if last.lines == first.lines:
            return None
        return (self.total - last.lines) * (last.at - first.at) / (last.lines - first.lines)


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
