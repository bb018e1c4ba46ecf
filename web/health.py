"""Whether a request sent now would be served."""

from __future__ import annotations

from redis.exceptions import RedisError

from common.client.generation import GenerationClient
from common.errors import Unhealthy
from web.live_workers import LiveWorkers


class HealthCheck:
    """Redis answers, this process hears its replies, and a worker has the model loaded. Load has no part in it."""

    def __init__(self, client: GenerationClient, workers: LiveWorkers) -> None:
        self._client = client
        self._workers = workers

    async def check(self, model: str | None = None) -> None:
        """
        Args:
            model: one of those served; default: the settings' one.

        Raises:
            Unhealthy: known within the Redis timeouts.
        """
        try:
            healthy = await self._workers.ready(model) and self._client.connected
        except RedisError:
            healthy = False
        if not healthy:
            raise Unhealthy
