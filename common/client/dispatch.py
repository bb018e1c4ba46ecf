"""Puts a job into its queue: one bounded script call."""

from __future__ import annotations

import redis.asyncio
from redis.exceptions import RedisError

from common.errors import Overloaded, ServiceUnavailable
from common.fair_queue import FAIR_QUEUE
from common.queue_depth import retry_after
from common.settings import Settings

SUBMIT = (
    FAIR_QUEUE
    + """
-- KEYS: queue. ARGV: jobs it may hold, message. Returns how many waited before, and if that was too many, -1 and how many
-- seconds they will wait.
local waiting = jobs_waiting(KEYS[1])
if waiting >= tonumber(ARGV[1]) then return {-1, seconds_to_drain(KEYS[1], seconds_now())} end
put(KEYS[1], ARGV[2], false)
return {waiting, 0}
"""
)


class Dispatcher:
    """Sends messages to queues that hold `queue_limit` messages at most, those of all tenants together."""

    def __init__(self, redis_client: redis.asyncio.Redis, settings: Settings) -> None:
        self._submit = redis_client.register_script(SUBMIT)
        self._limit = settings.queue_limit

    async def push(self, queue: str, message: bytes) -> int:
        """Append `message` to what its tenant has in `queue`, unless the queue is full; returns how many jobs of all
        tenants were waiting before it.

        The caller bounds the time (`asyncio.timeout`).

        Raises:
            Overloaded: the queue is full; the message is not in it. `retry_after` says when what waits should have been taken.
            ServiceUnavailable: Redis did not answer or refused. The message *may* be in the queue: cancel it.
        """
        try:
            waiting, seconds = await self._submit(keys=[queue], args=[self._limit, message])
        except (RedisError, OSError) as error:
            raise ServiceUnavailable("The queue cannot be reached") from error
        if waiting < 0:
            raise Overloaded("Model is overloaded", retry_after=retry_after(seconds))
        return int(waiting)
