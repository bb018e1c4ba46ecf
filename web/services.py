"""Everything the resources of one web process work with, started and stopped together."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket

from common.admission import Admission
from common.api_keys import KeyRing
from common.background import every, stop_tasks
from common.batches.storage import Storage
from common.batches.store import BatchStore
from common.client.generation import GenerationClient
from common.engine_metrics import EngineTotals
from common.garbage import settle_heap
from common.idempotency import CallStore
from common.key_limits import KeyLimits
from common.live_workers import LiveWorkers
from common.metrics import WebMetrics, multiprocess_directory
from common.redis_clients import async_redis
from common.served_models import Models
from common.settings import Settings
from common.stream_store import StreamStore
from common.tracing.setup import start_tracing
from web.drain import Drain
from web.health import HealthCheck
from web.idempotency import Idempotency
from web.reaping import Reaping
from web.resume import Resumption
from web.running import RunningRequests

KEY_FILE_SECONDS = 1.0
"""A change of the file of API keys is noticed after this time."""
COUNTERS_SECONDS = 1.0
"""What the client counts is in the metrics after this time."""
METRICS_SECONDS = 0.05
"""What was observed of requests is there for all processes after this time."""


class Services:
    """Built before the event loop runs; nothing is connected until `start`.

    Raises:
        ModelNotFound: the tokenizer's files are not there.
        ValueError: the limits do not fit the model, or the file of API keys or the storage of files is not right.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.api_keys = KeyRing(settings)
        self.redis = async_redis(settings)
        instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.tracing = start_tracing(settings, "web", instance)
        self.client = GenerationClient(settings, self.redis, self.tracing)
        self.keys = self.client.keys
        self.admission = Admission(self.redis, self.keys, settings, self.client.process_id)
        self.key_limits = KeyLimits(self.redis, self.keys, settings, self.client.process_id)
        self.idempotency = Idempotency(CallStore(self.redis, self.keys, settings), settings)
        self.running = RunningRequests(self.client, self.admission)
        self.resumption = Resumption(StreamStore(self.redis, self.keys, settings), self.running, self.client)
        self.reaping = Reaping(self.redis, settings)
        self.workers = LiveWorkers(self.redis, self.keys, settings)
        self.models = Models(settings, self.workers)
        self.metrics = WebMetrics(self.models.default.limits)
        self.engine_totals = EngineTotals(multiprocess_directory())
        self.drain = Drain(self.client, settings)
        self.health = HealthCheck(self.client, self.workers, self.drain)
        self.batches = BatchStore(self.redis, self.keys, settings)
        self.storage = Storage(settings)

    async def start(self) -> None:
        """Connect; when Redis is away the process starts all the same and answers 503 until it is there."""
        await self.client.start()
        await self.admission.start()
        await self.key_limits.start()
        self._following = [
            asyncio.create_task(every(KEY_FILE_SECONDS, self._follow_keys, "API keys")),
            asyncio.create_task(every(COUNTERS_SECONDS, self._follow_counters, "counters")),
            asyncio.create_task(every(METRICS_SECONDS, self._flush_metrics, "metrics")),
        ]
        await self.resumption.start()
        await self.reaping.start()
        await self.workers.start()
        settle_heap()

    async def stop(self) -> None:
        """Cancel what still runs, give back the permits, disconnect; bounded by the Redis timeouts."""
        await stop_tasks(self._following)
        await self._follow_counters()
        await self._flush_metrics()
        await self.reaping.stop()
        await self.idempotency.close()
        await self.resumption.stop()
        await self.client.close()
        await self.key_limits.close()
        await self.admission.close()
        await self.workers.stop()
        self.models.close()
        self.storage.close()
        await self.redis.aclose()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.stop)

    async def _follow_keys(self) -> None:
        await asyncio.to_thread(self.api_keys.refresh)

    async def _follow_counters(self) -> None:
        self.metrics.follow(self.client.counters)

    async def _flush_metrics(self) -> None:
        self.metrics.flush()
