"""The live workers as this process sees them: asked when somebody wants to know, at most a few times a second."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import redis.asyncio
from redis.exceptions import RedisError

from common.background import every, stop_tasks
from common.keys import Keys
from common.registry import live_workers
from common.settings import Settings
from common.wire import ModelCard, WorkerRecord

_MAX_AGE = 0.5
"""Seconds an answer, or the failure to get one, stands for those who ask next."""
_LOOK_SECONDS = 3.0
"""A look this often when nobody asks, so that every process has seen the models that were there."""


@dataclass(slots=True)
class _Seen:
    """A model as a worker described it, and when it was last there (monotonic)."""

    card: ModelCard
    at: float


class LiveWorkers:
    """Where nothing else is said, of the settings' model."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings) -> None:
        self._redis = redis_client
        self._keys = keys
        self._settings = settings
        self._reading: asyncio.Task[list[WorkerRecord]] | None = None
        self._read_at = 0.0
        self._last: list[WorkerRecord] = []
        self._seen: dict[str, _Seen] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._look()),
            asyncio.create_task(every(_LOOK_SECONDS, self._look, "look at the workers")),
        ]

    async def stop(self) -> None:
        await stop_tasks(self._tasks)

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
        model = self._settings.model_name if model is None else model
        return [record for record in await self.all_records() if record.model == model]

    async def ready(self, model: str | None = None) -> bool:
        """Whether a live worker takes requests.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        return any(record.state == "ready" for record in await self.records(model))

    async def loading(self, model: str) -> bool:
        """Whether live workers of a model are there, and none of them has ever had it loaded.

        Costs nothing unless it seems so.

        Raises:
            redis.exceptions.RedisError: it seemed so, and Redis is away or slow.
        """
        if model in self._seen or not _all_start(self._last, model):
            return False
        return _all_start(await self.all_records(), model)

    async def cards(self) -> dict[str, ModelCard]:
        """The models of live workers that have loaded theirs, by name; those last seen while Redis is away."""
        try:
            records = await self.all_records()
        except RedisError:
            return {name: seen.card for name, seen in self._seen.items()}
        return {record.model: record.card for record in records if record.card is not None}

    async def recent_cards(self) -> dict[str, ModelCard]:
        """Like `cards`, with the models whose last worker went so lately that a request sent then may still wait."""
        since = time.monotonic() - self._settings.queue_timeout
        recent = {name: seen.card for name, seen in self._seen.items() if seen.at >= since}
        return recent | await self.cards()

    async def card(self, model: str | None = None) -> ModelCard | None:
        """A model as a worker described it, now or the last time one was seen; None when none ever was."""
        model = self._settings.model_name if model is None else model
        if model not in self._seen:
            await self._look()
        seen = self._seen.get(model)
        return None if seen is None else seen.card

    async def adapters(self, model: str | None = None) -> frozenset[str] | None:
        """Adapters that every worker has which could get the job; None when no worker is there to ask."""
        try:
            cards = [record.card for record in await self.records(model) if record.card is not None]
        except RedisError:
            return None
        return frozenset.intersection(*(frozenset(card.adapters) for card in cards)) if cards else None

    async def _look(self) -> None:
        with suppress(RedisError):
            await self.all_records()

    async def _read(self) -> list[WorkerRecord]:
        try:
            records = await live_workers(self._redis, self._keys, self._settings.worker_dead_after)
        finally:
            self._read_at = time.monotonic()
        self._last = records
        for record in records:
            if record.card is not None:
                self._seen[record.model] = _Seen(record.card, self._read_at)
        return records


def _all_start(records: list[WorkerRecord], model: str) -> bool:
    states = {record.state for record in records if record.model == model}
    return "starting" in states and states <= {"starting", "draining", "drained"}
