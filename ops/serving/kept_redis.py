"""The embedded Redis server, kept running."""

from __future__ import annotations

import time

from ops.embedded_redis import EmbeddedRedis, RedisUnavailable
from ops.serving.restarts import Restarts
from ops.serving.view import View


class KeptRedis:
    """A server that was started once; `tend` looks after it from then on."""

    def __init__(self, server: EmbeddedRedis, view: View) -> None:
        self._server = server
        self._view = view
        self._restarts = Restarts()
        self._started = time.monotonic()
        self._start_again_at: float | None = None

    def tend(self) -> None:
        """Notice that the server ended, start it again when it is time.

        Raises:
            RedisUnavailable: it ended again and again.
        """
        now = time.monotonic()
        if self._start_again_at is None:
            if not self._server.running:
                self._ended(now, "ended")
        elif now >= self._start_again_at:
            self._start_again_at = None
            self._started = now
            try:
                self._server.start()
            except RedisUnavailable as error:
                self._ended(now, f"does not start: {error}")

    def _ended(self, now: float, how: str) -> None:
        delay = self._restarts.ended(now - self._started)
        if delay is None:
            raise RedisUnavailable(f"the embedded Redis {how}; given up after too many times in a row")
        self._start_again_at = now + delay
        self._view.line(f"tgq: the embedded Redis {how}; starting it again in {delay:g} s")
