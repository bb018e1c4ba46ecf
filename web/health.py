"""Whether a request sent now would be served, and what is missing if not. Load has no part in it."""

from __future__ import annotations

from msgspec import Struct
from redis.exceptions import RedisError

from common.client.generation import GenerationClient
from common.errors import Unhealthy
from common.live_workers import LiveWorkers
from common.wire import WorkerRecord, WorkerState
from web.drain import Drain


class WorkerStartup(Struct):
    """One live worker of the default model."""

    state: WorkerState
    progress: float
    """Of loading the model, 0 to 1."""


class Startup(Struct):
    started: bool
    """Whether a worker has had the default model loaded since this process began."""
    progress: float
    """Of the worker that is furthest with loading, 0 to 1."""
    workers: list[WorkerStartup]


class HealthCheck:
    """Redis answers, this process hears its replies and is not on its way out, a worker has the model loaded.

    What it says of workers is at most half a second old, so that many who ask cost no more than one. Known within the
    Redis timeouts.
    """

    def __init__(self, client: GenerationClient, workers: LiveWorkers, drain: Drain) -> None:
        self._client = client
        self._workers = workers
        self._drain = drain

    async def check(self, model: str | None = None) -> None:
        """
        Args:
            model: one of those served; default: the settings' one.

        Raises:
            Unhealthy: in TGI's words.
        """
        if await self._missing(model) is not None:
            raise Unhealthy

    async def check_ready(self) -> None:
        """
        Raises:
            Unhealthy: says what is missing.
        """
        if (missing := await self._missing(None)) is not None:
            raise Unhealthy(f"not ready: {missing}")

    async def startup(self) -> Startup:
        try:
            records = await self._workers.records()
        except RedisError:
            records = []
        started = await self._workers.card() is not None or any(record.state == "ready" for record in records)
        workers = [WorkerStartup(record.state, record.progress) for record in records]
        return Startup(started, 1.0 if started else _furthest(records), workers)

    async def _missing(self, model: str | None) -> str | None:
        if self._drain.begun:
            return "this web node is stopping"
        try:
            records = await self._workers.records(model)
        except RedisError:
            return "Redis does not answer"
        if not self._client.connected:
            return "Redis sends no tokens"
        if any(record.state == "ready" for record in records):
            return None
        if any(record.state in ("starting", "restarting") for record in records):
            return f"the model is being loaded ({_furthest(records):.0%})"
        return "no worker has the model"


def _furthest(records: list[WorkerRecord]) -> float:
    return max((record.progress for record in records if record.state in ("starting", "restarting")), default=0.0)
