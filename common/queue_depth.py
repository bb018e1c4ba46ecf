"""How much waits in a queue, and what to tell those it has no room for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import redis
import redis.asyncio

from common.fair_queue import FAIR_QUEUE
from common.keys import Keys

LONGEST_RETRY_AFTER = 60
"""Seconds; whoever is told more has forgotten by then."""


_OLDEST = (
    FAIR_QUEUE
    + """
local oldest = nil
local tenants = redis.call('ZRANGE', KEYS[1] .. ':turns', 0, -1)
tenants[#tenants + 1] = ''
for _, tenant in ipairs(tenants) do
  local message = redis.call('LINDEX', list_of(KEYS[1], tenant), -1)
  local submitted = message and number_in(tail_of(message), 'submitted')
  if submitted and (not oldest or submitted < oldest) then oldest = submitted end
end
return exact(oldest and math.max(seconds_now() - oldest, 0) or 0)
"""
)


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


async def oldest_age(client: redis.asyncio.Redis, queue: str) -> float:
    """Seconds since the job was submitted that waits longest, of all tenants; 0 when none waits.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    return float(cast("bytes | str", await client.eval(_OLDEST, 1, queue)))


def oldest_age_sync(client: redis.Redis, queue: str) -> float:
    """As `oldest_age`, for code without an event loop."""
    return float(cast("bytes | str", client.eval(_OLDEST, 1, queue)))


def retry_after(seconds: float) -> int:
    """A wait as a `Retry-After`: whole seconds, 1 to `LONGEST_RETRY_AFTER`."""
    return max(1, min(LONGEST_RETRY_AFTER, math.ceil(seconds)))


def _depth(reply: list[Any]) -> QueueDepth:
    own, (jobs, tokens) = reply
    # Lists that somebody emptied by hand are still counted, until a worker looks.
    return QueueDepth(int(own) + max(0, int(jobs or 0)), max(0, int(tokens or 0)))
