"""Everything the resources of one web process work with, started and stopped together."""

from __future__ import annotations

from typing import get_args

from common.admission import Admission
from common.client.generation import GenerationClient
from common.engine_metrics import EngineTotals
from common.garbage import settle_heap
from common.metrics import WebMetrics, multiprocess_directory
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import JobClass
from web.health import HealthCheck
from web.live_workers import LiveWorkers
from web.models import Models


class Services:
    """Built before the event loop runs; nothing is connected until `start`.

    Raises:
        ModelNotFound: the tokenizer's files are not there.
        ValueError: the limits do not fit the model.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.redis = async_redis(settings)
        self.client = GenerationClient(settings, self.redis)
        self.keys = self.client.keys
        self.admission = Admission(self.redis, self.keys, settings, self.client.process_id)
        self.workers = LiveWorkers(self.redis, self.keys, settings)
        self.models = Models(settings, self.workers)
        self.metrics = WebMetrics(self.models.default.limits)
        self.engine_totals = EngineTotals(multiprocess_directory())
        self.health = HealthCheck(self.client, self.workers)
        self.queues = [self.keys.queue(settings.model_id, job_class) for job_class in get_args(JobClass)]

    async def start(self) -> None:
        """Connect; when Redis is away the process starts all the same and answers 503 until it is there."""
        await self.client.start()
        await self.admission.start()
        settle_heap()

    async def stop(self) -> None:
        """Cancel what still runs, give back the permits, disconnect; bounded by the Redis timeouts."""
        await self.client.close()
        await self.admission.close()
        self.models.close()
        await self.redis.aclose()
