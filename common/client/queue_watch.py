"""Finds out when a job that waits for a worker is nowhere any more.

Redis may have lost its data, or somebody emptied the queue: then nobody would ever answer. A job that no worker has
accepted is in its queue or with a worker, and one script looks there for its very message.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import redis.asyncio
from redis.exceptions import RedisError

from common.client.failover import SentMessage
from common.fair_queue import FAIR_QUEUE
from common.keys import Keys

log = logging.getLogger(__name__)

TURN_SECONDS = 0.25
LOOKS_PER_TURN = 4
"""Comparing messages costs Redis about 0.1 microseconds for each that is in line before."""
LOSS_LOOKS_PER_TURN = 64
"""Once one is missing, many may be; there is not much to compare with then."""
FIRST_LOOK_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 10.0
MISSING_SECONDS = 1.0
"""A job is missing when two looks so far apart did not find it: its acceptance may be on its way."""

_FIND = (
    FAIR_QUEUE
    + """
-- KEYS: workers. ARGV: prefix of the workers' unacknowledged messages, then for each job its queue, delivery tag and
-- message. 1 for each that is there.
local workers = redis.call('ZRANGE', KEYS[1], 0, -1)
local function there(queue, tag, message)
  for _, worker in ipairs(workers) do
    if redis.call('HEXISTS', ARGV[1] .. worker, tag) == 1 then return 1 end
  end
  -- From the head on: what is served next is found first.
  local list = list_of(queue, tenant_of(tail_of(message)))
  return redis.call('LPOS', list, message, 'RANK', -1) and 1 or 0
end
local found = {}
for i = 2, #ARGV, 3 do found[#found + 1] = there(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return found
"""
)


class Watched:
    """When to look for one job."""

    __slots__ = ("_looked_at", "_missing_since", "_pause", "due", "sent")

    def __init__(self, sent: SentMessage, now: float) -> None:
        self.sent = sent
        self._pause = FIRST_LOOK_SECONDS
        self._missing_since: float | None = None
        self._looked_at = 0.0
        self.due = now + self._pause

    def hurry(self, now: float) -> None:
        """Jobs were lost, or may have been."""
        if self._missing_since is None:
            self.due = min(self.due, max(now, self._looked_at + FIRST_LOOK_SECONDS))

    def looked(self, found: bool, now: float) -> bool:
        """Take the result of a look; returns whether the job is missing."""
        self._looked_at = now
        if found:
            self._missing_since = None
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self.due = now + self._pause
            return False
        if self._missing_since is None:
            self._missing_since = now
        self.due = now + MISSING_SECONDS
        return now - self._missing_since >= MISSING_SECONDS


class Waiting(Protocol):
    """A request that may be waiting for a worker."""

    @property
    def watched(self) -> Watched | None:
        """None when its job is not in the queue, as far as is known."""

    def not_found(self, now: float) -> None:
        """Its job is neither in the queue nor with a worker, unless it has been accepted."""

    def missing(self, now: float) -> None:
        """Its job is nowhere."""


class QueueWatch:
    """Looks for the jobs of open requests, a few at a time, the longest due first."""

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, requests: Mapping[str, Waiting]) -> None:
        self._find = redis_client.register_script(_FIND)
        self._keys = keys
        self._requests = requests

    async def run(self) -> None:
        """Look until cancelled."""
        limit = LOOKS_PER_TURN
        while True:
            await asyncio.sleep(TURN_SECONDS)
            try:
                limit = LOSS_LOOKS_PER_TURN if await self.turn(limit) else LOOKS_PER_TURN
            except (RedisError, OSError) as error:
                log.debug("queued jobs are looked for later: %s", type(error).__name__)

    async def turn(self, limit: int) -> bool:
        """Look for at most `limit` jobs; returns whether one was not found.

        Raises:
            redis.exceptions.RedisError: Redis is away or slow.
        """
        now = time.monotonic()
        jobs = [(watched.due, job, watched) for job in self._requests.values() if (watched := job.watched) is not None]
        due = heapq.nsmallest(limit, [job for job in jobs if job[0] <= now], key=lambda job: job[0])
        if not due:
            return False
        found = await self._found([watched.sent for _, _, watched in due])
        now = time.monotonic()
        for (_, job, watched), there in zip(due, found, strict=True):
            if job.watched is not watched:
                continue  # Accepted or sent again meanwhile.
            if watched.looked(there, now):
                job.missing(now)
            elif not there:
                job.not_found(now)
        if all(found):
            return False
        for _, _, watched in jobs:
            watched.hurry(now)
        return True

    async def _found(self, sent: Sequence[SentMessage]) -> list[bool]:
        arguments = [part for message in sent for part in (message.queue, message.tag, message.message)]
        reply = await self._find(keys=[self._keys.workers], args=[self._keys.unacked(""), *arguments])
        return [bool(there) for there in reply]
