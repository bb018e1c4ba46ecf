"""Whether the workers that run our requests are alive."""

from __future__ import annotations

import time

import redis.asyncio
from redis.exceptions import RedisError

from common.keys import Keys
from common.registry import live_workers
from common.settings import Settings

GRACE_SECONDS = 1.0
"""A worker that left the registry may have frames on their way."""
FORGET_SECONDS = 600.0


class WorkerWatch:
    """Remembers each worker's last sign of life: a frame, or a look at the registry that found it there.

    The registry drops a worker `worker_dead_after` seconds after its last heartbeat. Right after Redis was away it says
    nothing about anyone: heartbeats could not arrive, or a server without persistence forgot them. So nobody counts as
    lost before `worker_dead_after` seconds with Redis have passed.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._dead_after = settings.worker_dead_after
        self._signs: dict[str, float] = {}
        self._trusted_from = 0.0
        self._looked_at = 0.0
        self.looks = 0
        """Successful reads of the registry."""

    def heard(self, worker: str, now: float) -> None:
        """A message of `worker` arrived."""
        self._signs[worker] = now

    def interrupted(self) -> None:
        """Redis was away, until now or still."""
        self._trusted_from = time.monotonic() + self._dead_after

    def lost(self, worker: str) -> bool:
        """Whether `worker` is gone for good, as of the last look."""
        if self._looked_at < self._trusted_from:
            return False
        return self._signs.get(worker, 0.0) < self._looked_at - GRACE_SECONDS

    async def look(self) -> None:
        """Read the registry. A failure only means that nobody is declared lost for a while."""
        try:
            workers = await live_workers(self._redis, self._keys, self._dead_after)
        except (RedisError, OSError):
            self.interrupted()
            return
        now = time.monotonic()
        for worker in workers:
            self._signs[worker.id] = now
        self._signs = {worker: sign for worker, sign in self._signs.items() if now - sign < FORGET_SECONDS}
        self._looked_at = now
        self.looks += 1
