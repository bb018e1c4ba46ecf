"""How many sequences may be under way at once, over all web processes of one Redis."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from types import TracebackType
from typing import NamedTuple, Self, cast

import redis
import redis.asyncio
from redis.exceptions import RedisError

from common.background import keep_running, stop_tasks
from common.errors import Overloaded, ServiceUnavailable
from common.fair_queue import FAIR_QUEUE
from common.keys import Keys
from common.queue_depth import retry_after
from common.settings import Settings

log = logging.getLogger(__name__)

RATE_SECONDS = 10.0
"""Permits given back in this time tell when the next ones will be free."""
_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_BETWEEN_WARNINGS = 60.0
_AWAY = "The queue (Redis) cannot be reached"
# Leases of now, by the server's clock.
_PROCESSES = """
local time = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), '+inf')
"""
SPARED = 8
"""A tenant with requests under way leaves one permit out of so many to tenants without."""

# Every call states how many permits its process holds, so that nothing has to be undone: whatever an earlier call whose
# answer was lost did, and whatever a restarted server forgot, is right again afterwards.
_TALK = (
    FAIR_QUEUE
    + """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], process)
  redis.call('ZREM', KEYS[2], process)
end
local process, lease, held = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('HDEL', KEYS[1], process)
local others = 0
for _, count in ipairs(redis.call('HVALS', KEYS[1])) do others = others + count end
local granted, backlog = {}, 0
for i = 4, #ARGV, 2 do
  local wanted, limit = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local fits = others + held + wanted <= limit
  if fits then held = held + wanted end
  granted[#granted + 1] = fits and 1 or 0
  if not fits and backlog == 0 then backlog = seconds_to_drain(KEYS[3], now / 1000) end
end
if held > 0 then
  redis.call('HSET', KEYS[1], process, held)
  redis.call('ZADD', KEYS[2], now + lease, process)
else
  redis.call('ZREM', KEYS[2], process)
end
-- After the last lease nobody may be left to clear up.
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
if last then
  redis.call('PEXPIREAT', KEYS[1], last)
  redis.call('PEXPIREAT', KEYS[2], last)
end
granted[#granted + 1] = backlog
return granted
"""
)


def held_sync(client: redis.Redis, keys: Keys) -> int:
    """Sequences that are under way over all web processes, dead ones until their lease is out.

    Raises:
        redis.exceptions.RedisError: Redis is away.
    """
    return sum(int(held) for held in cast("list[bytes]", client.hvals(keys.admission)))


class Permit:
    """The right to have some sequences under way. Release it, or leave its `with` block."""

    __slots__ = ("_admission", "sequences", "tenant")

    def __init__(self, admission: Admission, sequences: int, tenant: str) -> None:
        self.sequences = sequences
        self.tenant = tenant
        self._admission: Admission | None = admission

    def release(self) -> None:
        """Give it back; never waits, never raises, idempotent."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._give_back(self.sequences, self.tenant)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Asked(NamedTuple):
    sequences: int
    tenant: str
    answer: asyncio.Future[Permit]


class Admission:
    """Grants permits as long as all processes together hold at most `max_concurrent_requests`.

    One task talks to Redis, one call at a time; each call carries everything asked for and given back since the last
    one, and renews this process's lease. A process that dies frees its permits when its lease is out; one that was cut
    off for longer than its lease keeps what it holds and says so again at its first call.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys, settings: Settings, process_id: str) -> None:
        queue = keys.queue(settings.model_name, "interactive")
        self._keys = [keys.admission, keys.admission_leases, queue]
        self._process = process_id
        self._limit = settings.max_concurrent_requests
        self._lease = settings.lease_seconds
        self._timeout = settings.redis_timeout
        self._talk = redis_client.register_script(_TALK)
        self._processes = redis_client.register_script(_PROCESSES)
        self._held = 0
        self._held_by: Counter[str] = Counter()
        self._waiting: deque[_Asked] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._started = time.monotonic()
        self._given_back: deque[tuple[float, int]] = deque()

    @property
    def held(self) -> int:
        """Sequences this process holds permits for."""
        return self._held

    async def processes(self) -> set[str]:
        """Processes with sequences under way, dead ones until their lease is out.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        return {process.decode() for process in await self._processes(keys=[self._keys[1]])}

    async def start(self) -> None:
        """Start the task that talks to Redis; Redis need not be there yet."""
        self._started = time.monotonic()
        self._task = asyncio.create_task(keep_running(self._run, "admission"))

    async def close(self) -> None:
        """Stop, and free this process's permits (at once when Redis is there, else when the lease is out)."""
        if self._task is not None:
            await stop_tasks([self._task])
        for asked in self._waiting:
            if not asked.answer.done():
                asked.answer.set_exception(ServiceUnavailable("The service is shutting down"))
        self._held = 0
        try:
            await self._call([])
        except (RedisError, OSError, TimeoutError):
            log.warning("Redis is away: this process's permits are free when its lease is out")

    async def acquire(self, sequences: int = 1, tenant: str = "") -> Permit:
        """A permit for `sequences` sequences, all or none, known within one or two round trips.

        Args:
            tenant: who shares the service with others; when this process has requests of theirs under way already, the
                last eighth of the permits is for tenants without. The empty name shares with nobody.

        Raises:
            Overloaded: the limit is reached; `retry_after` says when that many should be free, and what waits in the
                queue of the service's own model should have been taken.
            ServiceUnavailable: Redis is away, known within `redis_timeout`.
        """
        if sequences < 1:
            raise ValueError("sequences must be at least 1")
        answer: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(sequences, tenant, answer))
        self._wake.set()
        permit = None
        try:
            async with asyncio.timeout(self._timeout):
                permit = await answer
        except TimeoutError as error:
            raise ServiceUnavailable(_AWAY) from error
        finally:
            if permit is None:
                _abandon(answer)
        return permit

    async def _run(self) -> None:
        warn_at = 0.0
        while True:
            try:
                async with asyncio.timeout(self._lease / 3):
                    await self._wake.wait()
            except TimeoutError:
                if not self._held:
                    continue  # No lease to renew.
            self._wake.clear()
            waiting = [asked for asked in self._waiting if not asked.answer.done()]
            self._waiting.clear()
            try:
                *granted, backlog = await self._call(waiting)
            except (RedisError, OSError, TimeoutError) as error:
                if (now := time.monotonic()) >= warn_at:
                    warn_at = now + _SECONDS_BETWEEN_WARNINGS
                    log.warning("admission cannot reach Redis: %s", type(error).__name__)
                for asked in waiting:
                    if not asked.answer.done():
                        asked.answer.set_exception(ServiceUnavailable(_AWAY))
                await asyncio.sleep(min(_SECONDS_BETWEEN_TRIES, self._lease / 3))
                self._wake.set()
                continue
            warn_at = 0.0
            for asked, grant in zip(waiting, granted, strict=True):
                self._answer(asked, bool(grant), backlog)

    async def _call(self, waiting: list[_Asked]) -> list[int]:
        lease = math.ceil(self._lease * 1000)
        arguments: list[str | int] = [self._process, lease, self._held]
        busy = set(self._held_by)
        for asked in waiting:
            spared = self._limit // SPARED if asked.tenant and asked.tenant in busy else 0
            busy.add(asked.tenant)
            arguments += (asked.sequences, self._limit - spared)
        async with asyncio.timeout(self._timeout):
            reply = await self._talk(keys=self._keys, args=arguments)
        return [int(number) for number in reply]

    def _answer(self, asked: _Asked, granted: bool, backlog: int) -> None:
        sequences, tenant, answer = asked
        if answer.done():
            # Its caller has left meanwhile; the next call states the count without it.
            self._wake.set()
        elif granted:
            self._held += sequences
            self._held_by[tenant] += sequences
            answer.set_result(Permit(self, sequences, tenant))
        else:
            seconds = max(backlog, self._seconds_until_free(sequences))
            answer.set_exception(Overloaded("Model is overloaded", retry_after=retry_after(seconds)))

    def _give_back(self, sequences: int, tenant: str) -> None:
        self._held -= sequences
        self._held_by[tenant] -= sequences
        if not self._held_by[tenant]:
            del self._held_by[tenant]
        self._given_back.append((time.monotonic(), sequences))
        self._forget_old_returns()
        self._wake.set()

    def _seconds_until_free(self, sequences: int) -> float:
        """Seconds until that many permits are free, at the rate of this process's last `RATE_SECONDS`."""
        window = min(RATE_SECONDS, time.monotonic() - self._started)
        self._forget_old_returns()
        returned = sum(count for _, count in self._given_back)
        # Nothing came back during the whole window: it takes at least as long again.
        return sequences * window / returned if returned else window

    def _forget_old_returns(self) -> None:
        oldest = time.monotonic() - RATE_SECONDS
        while self._given_back and self._given_back[0][0] < oldest:
            self._given_back.popleft()


def _abandon(answer: asyncio.Future[Permit]) -> None:
    """Nobody takes this answer any more; a permit granted in the very turn its caller left goes back."""
    if not answer.done():
        answer.cancel()
    elif not answer.cancelled() and answer.exception() is None:
        answer.result().release()
