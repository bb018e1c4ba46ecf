"""Jobs of dead workers go back to the queue also when no worker lives to return them: there they can be cancelled and seen."""

from __future__ import annotations

import asyncio
import time

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from common.background import every, stop_tasks
from common.reaper import reap_async
from common.settings import Settings

log = structlog.get_logger(__name__)

REAP_SECONDS = 1.0
"""Longest time between two looks for dead workers."""


class Reaping:
    """Reaps only while Redis answers on time: after it was away, everybody's heartbeats are late."""

    def __init__(self, redis_client: redis.asyncio.Redis, settings: Settings) -> None:
        self._redis = redis_client
        self._settings = settings
        self._seconds = min(REAP_SECONDS, settings.worker_dead_after / 2)
        self._punctual_since = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._punctual_since = time.monotonic()
        self._task = asyncio.create_task(every(self._seconds, self._look, "reaping"))

    async def stop(self) -> None:
        if self._task is not None:
            await stop_tasks([self._task])

    async def _look(self) -> None:
        began = time.monotonic()
        late = False
        try:
            if began - self._punctual_since < self._settings.worker_dead_after:
                await self._redis.ping()
            else:
                await reap_async(self._redis, self._settings)
        except (RedisError, OSError) as error:
            late = True
            log.debug("dead_workers_wait_for_redis", error=type(error).__name__)
        now = time.monotonic()
        if late or now - began > self._settings.heartbeat_seconds / 2:
            self._punctual_since = now
