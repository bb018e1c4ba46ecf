"""How a worker stops: nothing new, what has not begun goes back, what runs may end."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
import structlog

from common.keys import Keys
from common.reaper import hand_back
from workers.acks import Acks
from workers.dispatcher import Dispatcher
from workers.publisher import Publisher

log = structlog.get_logger()

TURN_SECONDS = 0.05


class Drain:
    """Two wishes, `requested` and `at_once`, set by signals; and what is done about them."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        dispatcher: Dispatcher,
        publisher: Publisher,
        acks: Acks,
        patience: float,
    ) -> None:
        # Plain flags, not events: a signal handler must not take a lock its own thread may hold.
        self.requested = False
        self.at_once = False
        self._client = client
        self._keys = keys
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._acks = acks
        self._patience = patience

    def request(self) -> None:
        """First time: stop when the running jobs have ended. Second time: stop now. Safe in a signal handler."""
        self.at_once = self.requested
        self.requested = True
        self._dispatcher.close()

    def run(self, turn: Callable[[], None]) -> None:
        """Give back what the engine has not accepted, then wait for the rest, `patience` seconds at most.

        Args:
            turn: runs the event loop's due callbacks; the loop itself has ended.
        """
        self._dispatcher.close()
        until = time.monotonic() + self._patience
        unstarted = self._dispatcher.take_back()
        while True:
            done = not self._dispatcher.requests() and self._publisher.idle()
            turn()
            try:
                self._acks.flush(self._client)
                if unstarted:
                    hand_back(self._client, self._keys, self._dispatcher.worker, unstarted)
                    self._acks.forget(unstarted)
                    log.info("jobs_handed_back", jobs=len(unstarted))
                    unstarted = []
            except redis.RedisError as error:
                log.warning("drain_waits_for_redis", error=type(error).__name__)
            if done or self.at_once or time.monotonic() >= until:
                return
            time.sleep(TURN_SECONDS)

    def finish(self) -> None:
        """The engine is gone or going: nothing of this worker stays in its own keys."""
        try:
            self._acks.flush(self._client)
            hand_back(self._client, self._keys, self._dispatcher.worker)
        except redis.RedisError as error:
            log.warning("jobs_left_to_the_reaper", error=type(error).__name__)
