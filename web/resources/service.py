"""How the service is: `/health`, `/ping`, `/info`, `/metrics`."""

from __future__ import annotations

import asyncio

from falcon.asgi import Request, Response
from redis.exceptions import RedisError

from common.engine_metrics import current_families, total_families
from common.metrics import exposition
from common.protocols.tgi_answer import encode
from common.wire import WorkerRecord
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

    async def _engines(self) -> tuple[list[WorkerRecord] | None, int]:
        services = self.services
        try:
            records = await services.workers.records()
            return records, sum([await services.redis.llen(queue) for queue in services.queues])
        except RedisError:
            return None, 0  # nothing is known, which is not the same as nothing running

    def _render(self, records: list[WorkerRecord] | None, queued: int) -> bytes:
        families = self.services.metrics.families()
        families += total_families(self.services.engine_totals.update(records or []))
        if records is not None:
            families += current_families(records, queued)
        return exposition(families)
