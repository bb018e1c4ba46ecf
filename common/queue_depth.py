"""How much waits in a queue, and what to tell those it has no room for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import redis
import redis.asyncio

from common.keys import Keys

LONGEST_RETRY_AFTER = 60
"""Seconds; whoever is told more has forgotten by then."""


class QueueDepth(NamedTuple):
    """What waits for a worker, of all tenants."""

    jobs: int
    tokens: int
    """KV-cache tokens they may come to hold, as far as their messages say."""


async def queue_depth(client: redis.asyncio.Redis, queue: str) -> QueueDepth:
    """What waits in `queue` (a name from `Keys.queue`); one round trip.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    async with client.pipeline(transaction=True) as pipe:
        pipe.llen(queue)
        pipe.hmget(Keys.depth(queue), "jobs", "tokens")
        return _depth(await pipe.execute())


def queue_depth_sync(client: redis.Redis, queue: str) -> QueueDepth:
    """As `queue_depth`, for code without an event loop."""
    with client.pipeline(transaction=True) as pipe:
        pipe.llen(queue)
        pipe.hmget(Keys.depth(queue), "jobs", "tokens")
        return _depth(pipe.execute())


def retry_after(seconds: float) -> int:
    """A wait as a `Retry-After`: whole seconds, 1 to `LONGEST_RETRY_AFTER`."""
    return max(1, min(LONGEST_RETRY_AFTER, math.ceil(seconds)))


def _depth(reply: list[Any]) -> QueueDepth:
    own, (jobs, tokens) = reply
    # Lists that somebody emptied by hand are still counted, until a worker looks.
    return QueueDepth(int(own) + max(0, int(jobs or 0)), max(0, int(tokens or 0)))
