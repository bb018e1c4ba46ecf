"""What the service is and does: `/info`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import get_args

from falcon.asgi import Request, Response
from redis.exceptions import RedisError

from common.engine_metrics import current_families, total_families
from common.metrics import exposition
from common.protocols.tgi_answer import encode
from common.queue_depth import oldest_age, queue_depth
from common.wire import JobClass, WorkerRecord
from web.info import service_info
from web.resources.resource import Resource, write_json
from web.services import METRICS_SECONDS


class Info(Resource):
    async def on_get(self, request: Request, response: Response) -> None:
        card = await self.services.workers.card()
        write_json(response, encode(service_info(self.services, card)))

    on_head = on_get


class Metrics(Resource):
    """Everything counted by all web processes of this host and by all engines, in Prometheus' text format."""

    async def on_get(self, request: Request, response: Response) -> None:
        self.services.metrics.tasks.set(len(asyncio.all_tasks()))
        records, queued, ages = await self._engines()
        await asyncio.sleep(1.5 * METRICS_SECONDS)  # until all processes have told what they observed before
        self.services.metrics.flush()
        response.content_type = "text/plain; version=0.0.4; charset=utf-8"
        # In a thread: all processes' files are read.
        response.data = await asyncio.to_thread(self._render, records, queued, ages)

    on_head = on_get

    async def _engines(self) -> tuple[list[WorkerRecord] | None, Counter[str], dict[str, float]]:
        """Live workers of all models, how many jobs of each model wait for one, and how long the next one has."""
        services, queued, ages = self.services, Counter[str](), dict[str, float]()
        try:
            records = await services.workers.all_records()
            for model in await services.models.queued():
                ages[model] = 0.0
                for job_class in get_args(JobClass):
                    queue = services.keys.queue(model, job_class)
                    queued[model] += (await queue_depth(services.redis, queue)).jobs
                    ages[model] = max(ages[model], await oldest_age(services.redis, queue))
        except RedisError:
            return None, queued, ages  # nothing is known, which is not the same as nothing running
        return records, queued, ages

    def _render(
        self, records: list[WorkerRecord] | None, queued: Mapping[str, int], ages: Mapping[str, float]
    ) -> bytes:
        families = self.services.metrics.families()
        families += total_families(self.services.engine_totals.update(records or []))
        if records is not None:
            families += current_families(records, queued, ages)
        return exposition(families)
