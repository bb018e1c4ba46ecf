"""Interrupts a wait that has been silent for too long.

`asyncio.timeout` does the same with a timer for every wait, which costs as much as all else that is done for a token. This
one looks after all waits of a task with one timer an interval.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Self


class Silence:
    """Around each wait: `begin()`, `end()`, and `interrupted()` on `CancelledError`. Entered in the task that waits.

    Args:
        seconds: how long a wait may last; None for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._waiting_since: float | None = None
        self._interrupted = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        if self._seconds is not None:
            self._arm(self._seconds)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self) -> None:
        self._waiting_since = monotonic()

    def end(self) -> None:
        self._waiting_since = None

    def interrupted(self) -> bool:
        """Whether the cancellation just caught was this object's, and nobody else wants the task cancelled."""
        interrupted, self._interrupted = self._interrupted, False
        return interrupted and self._task is not None and self._task.uncancel() <= self._cancelling

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        assert self._seconds is not None
        left = self._seconds
        if self._waiting_since is not None:
            left -= monotonic() - self._waiting_since
            if left <= 0:
                self._waiting_since = None
                self._interrupted = True
                if self._task is not None:
                    self._task.cancel()
                left = self._seconds
        self._arm(left)
