"""Puts a job into its queue: one bounded script call."""

from __future__ import annotations

import redis.asyncio
from redis.exceptions import RedisError

from common.errors import Overloaded, ServiceUnavailable
from common.settings import Settings

_SUBMIT = """
local waiting = redis.call('LLEN', KEYS[1])
if waiting >= tonumber(ARGV[1]) then return -1 end
redis.call('LPUSH', KEYS[1], ARGV[2])
return waiting
"""


class Dispatcher:
    """Sends messages to queues that hold `queue_limit` messages at most."""

    def __init__(self, redis_client: redis.asyncio.Redis, settings: Settings) -> None:
        self._submit = redis_client.register_script(_SUBMIT)
        self._limit = settings.queue_limit

    async def push(self, queue: str, message: bytes) -> int:
        """Append `message`, unless the queue is full; returns how many messages were waiting before it.

        The caller bounds the time (`asyncio.timeout`).

        Raises:
            Overloaded: the queue is full; the message is not in it.
            ServiceUnavailable: Redis did not answer or refused. The message *may* be in the queue: cancel it.
        """
        try:
            waiting = int(await self._submit(keys=[queue], args=[self._limit, message]))
        except (RedisError, OSError) as error:
            raise ServiceUnavailable("The queue cannot be reached") from error
        if waiting < 0:
            raise Overloaded("Model is overloaded", retry_after=1)
        return waiting
