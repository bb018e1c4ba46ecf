"""How a worker stops: nothing new, what has not begun goes back, what runs goes on elsewhere or may end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import redis
import structlog

from common.keys import Keys
from common.reaper import hand_back
from common.registry import live_workers_sync
from common.settings import Settings
from workers.acks import Acks
from workers.dispatcher import Dispatcher
from workers.publisher import Publisher

log = structlog.get_logger()

TURN_SECONDS = 0.05
LOOK_SECONDS = 0.5
"""Time between two looks for another worker."""
HANDED_OVER = "the worker was told to stop"


class Drain:
    """Two wishes, `requested` and `at_once`, set by signals; and what is done about them.

    A thread of its own, beside Celery's event loop: that one settles and acknowledges meanwhile what ends, and stops last,
    because its last pull may take a second.
    """

    def __init__(
        self,
        settings: Settings,
        client: redis.Redis,
        dispatcher: Dispatcher,
        publisher: Publisher,
        acks: Acks,
        *,
        announce: Callable[[], None],
    ) -> None:
        """
        Args:
            announce: writes the worker's record, which says that it takes nothing more; raises `redis.RedisError`.
        """
        # Plain flags, not events: a signal handler must not take a lock its own thread may hold.
        self.requested = False
        self.at_once = False
        self._settings = settings
        self._keys = Keys(settings.key_prefix)
        self._client = client
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._acks = acks
        self._announce = announce
        # The one kind of queue that a signal handler may put into.
        self._wishes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._announced = False
        self._failing = False

    def request(self) -> None:
        """First time: stop as `on_sigterm` says. Second time: stop now. Safe in a signal handler."""
        self.at_once = self.requested
        self.requested = True
        self._dispatcher.close()
        self._wishes.put(None)

    def start(self, then: Callable[[], None]) -> None:
        """Wait for the first request, do what it asks for, and call `then`."""

        def run() -> None:
            self._wishes.get()
            try:
                self._drain()
            except Exception:
                # The boundary of this thread: a worker that was told to stop stops.
                log.exception("drain_fault")
            finally:
                self._over.set()
                then()

        threading.Thread(target=run, name="drain", daemon=True).start()

    def wait(self, turn: Callable[[], None]) -> None:
        """Celery's event loop has ended, because of the drain or by itself: return when the drain is over.

        Args:
            turn: runs the loop's due callbacks.
        """
        if not self.requested:
            self.request()
        while not self._over.wait(TURN_SECONDS):
            turn()
        turn()

    def finish(self) -> None:
        """The engine is gone or going: nothing of this worker stays in its own keys."""
        try:
            self._acks.flush(self._client)
            hand_back(self._client, self._keys, self._dispatcher.worker)
        except redis.RedisError as error:
            log.warning("jobs_left_to_the_reaper", error=type(error).__name__)

    def _drain(self) -> None:
        until = time.monotonic() + self._settings.graceful_termination_timeout
        look_at = 0.0
        handing_over = False
        while not self.at_once and time.monotonic() < until:
            self._give_back()
            if not handing_over and time.monotonic() >= look_at:
                handing_over = self._hands_over()
                look_at = time.monotonic() + LOOK_SECONDS
            if handing_over:
                self._hand_over()
            if not self._dispatcher.requests() and (handing_over or self._publisher.idle()):
                return
            time.sleep(TURN_SECONDS)
        self._hand_over()

    def _give_back(self) -> None:
        """Tell everybody that this worker takes nothing more, and return what the engine has not accepted."""
        if unstarted := self._dispatcher.take_back():
            log.info("jobs_handed_back", jobs=len(unstarted))
            self._acks.give_back(unstarted)
        try:
            if not self._announced:
                self._announce()
                self._announced = True
            self._acks.flush(self._client)
            self._failing = False
        except redis.RedisError as error:
            if not self._failing:
                log.warning("drain_waits_for_redis", error=type(error).__name__)
            self._failing = True

    def _hands_over(self) -> bool:
        """Whether running requests are to go on elsewhere. Asked after the announcement: of two workers told to stop at
        once, at most one counts on the other.
        """
        if self._settings.on_sigterm != "auto":
            return self._settings.on_sigterm == "hand_over"
        if not self._announced:
            return False
        try:
            workers = live_workers_sync(self._client, self._keys, self._settings.worker_dead_after)
        except redis.RedisError:
            return False
        return any(
            worker.state == "ready"
            and worker.model == self._settings.model_name
            and worker.id != self._dispatcher.worker
            for worker in workers
        )

    def _hand_over(self) -> None:
        if jobs := self._dispatcher.hand_over(HANDED_OVER):
            log.info("jobs_handed_over", jobs=jobs)
