"""The batch runner: takes batches that nobody holds and sees them through, several at a time."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from contextlib import suppress

import structlog
from redis.exceptions import RedisError

from common.background import every, keep_running, stop_tasks
from common.batches.removal import remove_expired_files
from common.batches.storage import Storage
from common.batches.store import BatchStore
from common.client.generation import GenerationClient
from common.errors import ServiceUnavailable
from common.garbage import settle_heap
from common.live_workers import LiveWorkers
from common.redis_clients import async_redis
from common.served_models import Models
from common.settings import Settings
from common.tracing.setup import start_tracing
from workers.batch.answering import Answering
from workers.batch.endings import Endings
from workers.batch.run import BatchRun, Collaborators
from workers.batch.webhooks import Webhooks
from workers.batch.windows import Windows

log = structlog.get_logger(__name__)

_ASK_SECONDS = 0.5
"""Between two questions for a batch."""
_LOOK_SECONDS = 1.0
"""Between two looks at the workers."""
_WEBHOOK_SECONDS = 1.0
_SWEEP_SECONDS = 60.0
_SILENT_SECONDS = 600.0
"""A line that gave way to live requests says nothing meanwhile; engines that hang are found out by their workers."""
_END_SECONDS = 15.0
"""What batches have to be let go, when this process is to end."""


class BatchRunner:
    """Built before the event loop runs.

    Raises:
        ModelNotFound: the tokenizer's files are not there.
        ValueError: the limits do not fit the model, or the storage is none.
    """

    def __init__(self, settings: Settings) -> None:
        self.id = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._settings = settings
        self._redis = async_redis(settings)
        patient = settings.model_copy(update={"stall_timeout": max(settings.stall_timeout, _SILENT_SECONDS)})
        self._tracing = start_tracing(settings, "batch-worker", self.id)
        self._client = GenerationClient(patient, self._redis, self._tracing)
        keys = self._client.keys
        self._store = BatchStore(self._redis, keys, settings)
        self._storage = Storage(settings)
        self._live_workers = LiveWorkers(self._redis, keys, settings)
        self._models = Models(settings, self._live_workers)
        self._windows = Windows(self._live_workers, settings)
        self._webhooks = Webhooks(self._redis, keys, self._store, settings)
        self._use = Collaborators(
            settings=settings,
            store=self._store,
            storage=self._storage,
            models=self._models,
            answering=Answering(self._client, self._live_workers, settings),
            windows=self._windows,
            endings=Endings(self._store, self._storage, self._webhooks),
        )
        self._runs: set[asyncio.Task[None]] = set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop; what is under way is then written down and left to others."""
        await self._client.start()
        await self._live_workers.start()
        await self._windows.look()
        tasks = [
            asyncio.create_task(every(_LOOK_SECONDS, self._windows.look, "look at the workers")),
            asyncio.create_task(every(_WEBHOOK_SECONDS, self._tell, "webhooks")),
            asyncio.create_task(every(_SWEEP_SECONDS, self._sweep, "removal of expired files")),
        ]
        taking = asyncio.create_task(keep_running(lambda: self._take(stopping), "taking of batches"))
        settle_heap()
        log.info("batch_runner_ready", runner=self.id)
        try:
            await stopping.wait()
        finally:
            await stop_tasks([taking])
            if self._runs:
                await asyncio.wait(self._runs, timeout=_END_SECONDS)
            await stop_tasks([*self._runs, *tasks])
            await self._client.close()
            await self._live_workers.stop()
            self._models.close()
            await self._redis.aclose()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.stop)
            log.info("batch_runner_stopped", runner=self.id)

    async def _take(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            if len(self._runs) >= self._settings.batch_concurrency:
                await asyncio.wait(self._runs, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                claim = await self._store.claim(self.id, self._settings.batch_lease_seconds)
            except (RedisError, OSError) as error:
                log.debug("batches_not_asked_for", reason=type(error).__name__)
                claim = None
            if claim is None:
                await asyncio.sleep(_ASK_SECONDS)
                continue
            run = asyncio.create_task(BatchRun(claim, self._use, stopping).run())
            self._runs.add(run)
            run.add_done_callback(self._ended)

    def _ended(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if not run.cancelled() and (error := run.exception()) is not None:
            log.error("batch_run_failed", exc_info=error)

    async def _tell(self) -> None:
        with suppress(RedisError):  # They are due still when it is back.
            await self._webhooks.deliver_due()

    async def _sweep(self) -> None:
        try:
            while await remove_expired_files(self._store, self._storage, time.time()):
                pass
            await self._storage.remove_unfinished()
        except (RedisError, ServiceUnavailable) as error:
            log.warning("expired_files_stay", reason=type(error).__name__)
