"""Connects the transport, which pulls on the event loop's thread, with the dispatcher, which knows the room."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import structlog

from workers.dispatcher import Dispatcher
from workers.marks import Marks
from workers.transport import Offer

log = structlog.get_logger()

STUCK_SECONDS = 5.0
"""A worker that has not been able to look for work for this time says that it takes none."""


class EngineIntake:
    """See `workers.transport.Intake`. `freed` may be called from any thread, the rest is the event loop's."""

    dispatcher: Dispatcher
    marks: Marks
    recovered: Callable[[], None]
    """`stuck` is over."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._hub: Any = None
        self._pull: Callable[[], None] | None = None
        self._pull_due = False
        self._failing_since: float | None = None

    @property
    def stuck(self) -> bool:
        """Whether nothing can be pulled, although Redis may be there. Asked from any thread."""
        since = self._failing_since
        return since is not None and time.monotonic() - since > STUCK_SECONDS

    def looked(self, *, failed: bool) -> None:
        if not failed:
            recovered, self._failing_since = self.stuck, None
            if recovered:
                self.recovered()
        elif self._failing_since is None:
            self._failing_since = time.monotonic()

    def attach(self, hub: Any, pull: Callable[[], None]) -> None:
        self._hub, self._pull = hub, pull

    def room(self, queues: Sequence[str]) -> Offer:
        return self.dispatcher.room(queues)

    def overdue(self, tag: str) -> None:
        self.dispatcher.overdue(tag)

    def pulled(self) -> None:
        """Give the pulled jobs to the engine together, less those that were given up or sent again meanwhile.

        Both are first written down, then broadcast. Looked up only now that the dispatcher holds the jobs, none is missed:
        one written later finds its job here when the broadcast comes.
        """
        try:
            self.marks.look(self._client, self.dispatcher.waiting())
        except redis.RedisError as error:
            # The control listener looks again when it is connected again.
            log.warning("marks_unknown", error=type(error).__name__)
        self.dispatcher.give()

    def freed(self) -> None:
        if self._hub is not None and not self._pull_due:
            self._pull_due = True
            self._hub.call_soon(self._refill)

    def _refill(self) -> None:
        self._pull_due = False
        if self._pull is not None:
            self._pull()
