"""What the service is and does: `/info`, `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from falcon.asgi import Request, Response
from redis.exceptions import RedisError

from common.batches.overview import OpenBatch, batch_families, open_batches
from common.engine_metrics import current_families, total_families
from common.metrics import exposition
from common.protocols.tgi_answer import encode
from common.wire import WorkerRecord
from web.info import service_info
from web.resources.resource import Resource, write_json
from web.services import METRICS_SECONDS
from web.waiting import Waiting, waiting


class Info(Resource):
    async def on_get(self, request: Request, response: Response) -> None:
        card = await self.services.workers.card()
        write_json(response, encode(service_info(self.services, card)))

    on_head = on_get


class Metrics(Resource):
    """Everything counted by all web processes of this host and by all engines, in Prometheus' text format."""

    async def on_get(self, request: Request, response: Response) -> None:
        self.services.metrics.tasks.set(len(asyncio.all_tasks()))
        records, queues = await self._engines()
        batches = await self._batches()
        await asyncio.sleep(1.5 * METRICS_SECONDS)  # until all processes have told what they observed before
        self.services.metrics.flush()
        response.content_type = "text/plain; version=0.0.4; charset=utf-8"
        # In a thread: all processes' files are read.
        response.data = await asyncio.to_thread(self._render, records, queues, batches)

    on_head = on_get

    async def _engines(self) -> tuple[list[WorkerRecord] | None, Mapping[str, Waiting]]:
        """Live workers of all models, and what waits for one."""
        try:
            return await self.services.workers.all_records(), await waiting(self.services)
        except RedisError:
            return None, {}  # nothing is known, which is not the same as nothing running

    async def _batches(self) -> list[OpenBatch] | None:
        try:
            return await open_batches(self.services.redis, self.services.keys)
        except RedisError:
            return None

    def _render(
        self,
        records: list[WorkerRecord] | None,
        queues: Mapping[str, Waiting],
        batches: list[OpenBatch] | None,
    ) -> bytes:
        families = self.services.metrics.families()
        families += total_families(self.services.engine_totals.update(records or []))
        if records is not None:
            jobs = {model: queue.jobs for model, queue in queues.items()}
            ages = {model: queue.oldest_seconds for model, queue in queues.items()}
            families += current_families(records, jobs, ages)
        if batches is not None:
            families += batch_families(batches, time.time())
        return exposition(families)
