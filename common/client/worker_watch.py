"""Whether the workers that run our requests are alive."""

from __future__ import annotations

import time

import redis.asyncio
from redis.exceptions import RedisError

from common.keys import Keys
from common.settings import Settings

FORGET_SECONDS = 600.0

# With all ages from one clock, the server's: a reply that took its time makes nobody older.
_AGES = """
local now = redis.call('TIME')
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 2, #reply, 2 do reply[i] = string.format('%.3f', now[1] + now[2] / 1e6 - reply[i]) end
return reply
"""


class WorkerWatch:
    """Remembers each worker's last sign of life: a frame, or its last heartbeat.

    A worker is lost `worker_dead_after` seconds after it, by Redis' clock. Heartbeats that could not arrive, because Redis
    was away or slow, say nothing about a worker: it then has the time it needs to come back to Redis before it may count
    as lost.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._ages = redis_client.register_script(_AGES)
        self._keys = keys
        self._dead_after = settings.worker_dead_after
        self._slow = settings.heartbeat_seconds / 2
        self._comes_back = settings.redis_timeout + settings.redis_connect_timeout
        self._signs: dict[str, float] = {}
        self._all_signed = 0.0
        """Until then everybody counts as alive."""
        self._looked_at = 0.0
        self.looks = 0
        """Successful looks at the heartbeats."""

    def heard(self, worker: str, now: float) -> None:
        """A message of `worker` arrived."""
        self._signs[worker] = now

    def interrupted(self) -> None:
        """Redis was away, until now or still."""
        self._all_signed = time.monotonic() + self._comes_back

    def lost(self, worker: str) -> bool:
        """Whether `worker` is lost, as of the last look."""
        return self._looked_at - max(self._signs.get(worker, 0.0), self._all_signed) > self._dead_after

    async def look(self) -> None:
        """Read the heartbeats. A failure only means that nobody is declared lost for a while."""
        began = time.monotonic()
        try:
            reply = await self._ages(keys=[self._keys.workers])
        except (RedisError, OSError):
            self.interrupted()
            return
        now = time.monotonic()
        if now - began > self._slow:
            # Whatever held this reply up, Redis or this process, may have held heartbeats up.
            self.interrupted()
        for worker, age in zip(reply[::2], reply[1::2], strict=True):
            name = worker.decode()
            self._signs[name] = max(self._signs.get(name, 0.0), now - max(float(age), 0.0))
        self._signs = {worker: sign for worker, sign in self._signs.items() if now - sign < FORGET_SECONDS}
        self._looked_at = now
        self.looks += 1
