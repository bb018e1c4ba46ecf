"""The live workers as this web process sees them: asked when somebody wants to know, at most a few times a second."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import redis.asyncio
from redis.exceptions import RedisError

from common.keys import Keys
from common.registry import live_workers
from common.settings import Settings
from common.wire import ModelCard, WorkerRecord

_MAX_AGE = 0.5
"""Seconds an answer, or the failure to get one, stands for those who ask next."""


class LiveWorkers:
    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._settings = settings
        self._reading: asyncio.Task[list[WorkerRecord]] | None = None
        self._read_at = 0.0
        self._card: ModelCard | None = None

    async def records(self) -> list[WorkerRecord]:
        """Live workers of this service's model.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        if self._reading is None or (self._reading.done() and time.monotonic() - self._read_at > _MAX_AGE):
            self._reading = asyncio.create_task(self._read())
        # Everyone waits for the same answer, and none who leaves takes it away from the others.
        return await asyncio.shield(self._reading)

    async def ready(self) -> bool:
        """Whether a live worker takes requests."""
        return any(record.state == "ready" for record in await self.records())

    async def card(self) -> ModelCard | None:
        """The model as a worker described it, now or the last time one was seen; None when none ever was."""
        if self._card is None:
            with suppress(RedisError):
                await self.records()
        return self._card

    async def adapters(self) -> frozenset[str] | None:
        """Adapters that every worker has which could get the job; None when no worker is there to ask."""
        try:
            cards = [record.card for record in await self.records() if record.card is not None]
        except RedisError:
            return None
        return frozenset.intersection(*(frozenset(card.adapters) for card in cards)) if cards else None

    async def _read(self) -> list[WorkerRecord]:
        try:
            records = await live_workers(self._redis, self._keys, self._settings.worker_dead_after)
        finally:
            self._read_at = time.monotonic()
        records = [record for record in records if record.model == self._settings.model_id]
        self._card = next((record.card for record in records if record.card is not None), self._card)
        return records
