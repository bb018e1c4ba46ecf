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
    """Where nothing else is said, of the settings' model."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._settings = settings
        self._reading: asyncio.Task[list[WorkerRecord]] | None = None
        self._read_at = 0.0
        self._cards: dict[str, ModelCard] = {}

    async def all_records(self) -> list[WorkerRecord]:
        """Live workers of every model.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        if self._reading is None or (self._reading.done() and time.monotonic() - self._read_at > _MAX_AGE):
            self._reading = asyncio.create_task(self._read())
        # Everyone waits for the same answer, and none who leaves takes it away from the others.
        return await asyncio.shield(self._reading)

    async def records(self, model: str | None = None) -> list[WorkerRecord]:
        """Live workers of one model.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        model = self._settings.model_id if model is None else model
        return [record for record in await self.all_records() if record.model == model]

    async def ready(self, model: str | None = None) -> bool:
        """Whether a live worker takes requests.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        return any(record.state == "ready" for record in await self.records(model))

    async def cards(self) -> dict[str, ModelCard]:
        """The models of live workers that have loaded theirs, by name; those last seen while Redis is away."""
        try:
            records = await self.all_records()
        except RedisError:
            return self._cards
        return {record.model: record.card for record in records if record.card is not None}

    async def card(self, model: str | None = None) -> ModelCard | None:
        """A model as a worker described it, now or the last time one was seen; None when none ever was."""
        model = self._settings.model_id if model is None else model
        if model not in self._cards:
            with suppress(RedisError):
                await self.all_records()
        return self._cards.get(model)

    async def adapters(self, model: str | None = None) -> frozenset[str] | None:
        """Adapters that every worker has which could get the job; None when no worker is there to ask."""
        try:
            cards = [record.card for record in await self.records(model) if record.card is not None]
        except RedisError:
            return None
        return frozenset.intersection(*(frozenset(card.adapters) for card in cards)) if cards else None

    async def _read(self) -> list[WorkerRecord]:
        try:
            records = await live_workers(self._redis, self._keys, self._settings.worker_dead_after)
        finally:
            self._read_at = time.monotonic()
        self._cards.update({record.model: record.card for record in records if record.card is not None})
        return records
