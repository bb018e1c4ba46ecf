"""How the service is: `/health`, `/ping`, `/info`, `/metrics`."""

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
from common.queue_depth import queue_depth
from common.wire import JobClass, WorkerRecord
from web.info import service_info
from web.resources.resource import Resource, write_json


class Health(Resource):
    """200 with an empty body when a request sent now would be served, else 503."""

    async def on_get(self, request: Request, response: Response) -> None:
        await self.services.health.check()

    on_head = on_get


class Info(Resource):
    async def on_get(self, request: Request, response: Response) -> None:
        card = await self.services.workers.card()
        write_json(response, encode(service_info(self.services, card)))

    on_head = on_get


class Metrics(Resource):
    """Everything counted by all web processes of this host and by all engines, in Prometheus' text format."""

    async def on_get(self, request: Request, response: Response) -> None:
        self.services.metrics.tasks.set(len(asyncio.all_tasks()))
        records, queued = await self._engines()
        response.content_type = "text/plain; version=0.0.4; charset=utf-8"
        # In a thread: all processes' files are read.
        response.data = await asyncio.to_thread(self._render, records, queued)

    on_head = on_get

    async def _engines(self) -> tuple[list[WorkerRecord] | None, Counter[str]]:
        """Live workers of all models, and how many jobs of each model wait for one."""
        services, queued = self.services, Counter[str]()
        try:
            records = await services.workers.all_records()
            for model in await services.models.queued():
                for job_class in get_args(JobClass):
                    queued[model] += (await queue_depth(services.redis, services.keys.queue(model, job_class))).jobs
        except RedisError:
            return None, queued  # nothing is known, which is not the same as nothing running
        return records, queued

    def _render(self, records: list[WorkerRecord] | None, queued: Mapping[str, int]) -> bytes:
        families = self.services.metrics.families()
        families += total_families(self.services.engine_totals.update(records or []))
        if records is not None:
            families += current_families(records, queued)
        return exposition(families)
