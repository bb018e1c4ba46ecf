"""What a submitter tells the workers: cancel, disown, resend, release. Nobody waits for these calls."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass

import redis.asyncio
from redis.exceptions import RedisError

from common.fair_queue import FAIR_QUEUE
from common.keys import CANCELLED_RUNNING_SECONDS, CANCELLED_SECONDS, Keys
from common.wire import Cancel, Control, Release, Resend, WebControl, encode_msgpack

log = logging.getLogger(__name__)

RELEASE_SECONDS = 1.0
"""Finished requests are released together, this often."""
RETRY_SECONDS = 0.5
CANCELS_PER_CALL = 64
ANY_ATTEMPT = 2**53 - 1
"""Higher than all; Lua's largest whole number."""
CANCELS_KEPT = 10_000
"""Cancels that wait for Redis to come back; beyond it the oldest are forgotten and their jobs run to their end."""
DISOWN_SECONDS = 1.0
"""A worker that goes on with an attempt nobody waits for is told again after this time ..."""
DISOWNS_KEPT = 1000
"""... and of so many attempts at once."""

# A job that is still in its queue leaves it, and nobody has to remember it. Any other may be anywhere, even on its way
# into the queue (a push whose answer was lost), so the mark stays until it can no longer start.
# Somebody who has gone on with a higher attempt is not cancelled.
_CANCEL = (
    FAIR_QUEUE
    + """
if ARGV[1] ~= '' and remove(KEYS[1], ARGV[1]) then return 1 end
if tonumber(redis.call('GET', KEYS[3]) or 1) > tonumber(ARGV[5]) then
  redis.call('PUBLISH', ARGV[3], ARGV[6])
  return 0
end
redis.call('SET', KEYS[2], '1', 'EX', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 0
"""
)


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    queue: str
    message: bytes | None
    """None when it is known to have left the queue."""
    attempt: int


class ControlSender:
    """Sends control messages in the background, over one pipelined call at a time.

    Cancels are kept until Redis has taken them. The others are not: a stream asks again, a stale frame that comes is
    answered again, and a worker forgets a finished request by itself after a while.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, keys: Keys) -> None:
        self._redis = redis_client
        self._keys = keys
        self._cancel = redis_client.register_script(_CANCEL)
        self._cancels: dict[str, _QueuedJob] = {}
        self._disowned: dict[tuple[str, str], tuple[int, float]] = {}
        """Worker and request, with what was said and when."""
        self._others: list[tuple[str, Cancel | Resend | WebControl]] = []
        self._releases: defaultdict[str, list[str]] = defaultdict(list)
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Messages not sent yet."""
        return len(self._cancels) + len(self._others) + sum(map(len, self._releases.values()))

    def cancel(self, request: str, queue: str, message: bytes | None, attempt: int) -> None:
        """Stop `request`: take `message` (None: it left the queue) out of `queue`, or else tell every worker.

        Args:
            attempt: the newest the caller knows of; higher ones are somebody else's and go on.
        """
        self._cancels[request] = _QueuedJob(queue, message, attempt)
        if len(self._cancels) > CANCELS_KEPT:
            del self._cancels[next(iter(self._cancels))]
            log.error("Redis is away and %d cancels wait for it: the oldest is dropped", CANCELS_KEPT)
        self._wake.set()

    def disown(self, worker: str, request: str, below: int, now: float) -> None:
        """Let `worker` stop attempts of `request` that are lower than `below`; said once in `DISOWN_SECONDS`."""
        said, at = self._disowned.get((worker, request), (0, 0.0))
        if below <= said and now - at < DISOWN_SECONDS:
            return
        if len(self._disowned) >= DISOWNS_KEPT:
            self._disowned = {pair: entry for pair, entry in self._disowned.items() if now - entry[1] < DISOWN_SECONDS}
            if len(self._disowned) >= DISOWNS_KEPT:
                return  # Its next frame says it again.
        self._disowned[worker, request] = (below, now)
        self._others.append((self._keys.control_of(worker), Cancel(request, below)))
        self._wake.set()

    def resend(self, worker: str | None, request: str, attempt: int, from_sequence: int) -> None:
        """Ask `worker` (None: whichever has the request) for the frames from `from_sequence` on."""
        channel = self._keys.control if worker is None else self._keys.control_of(worker)
        self._others.append((channel, Resend(request, attempt, from_sequence)))
        self._wake.set()

    def tell(self, channel: str, message: WebControl) -> None:
        """Say something to another web process."""
        self._others.append((channel, message))
        self._wake.set()

    def release(self, worker: str, request: str) -> None:
        """Let `worker` forget a request whose frames have all arrived."""
        self._releases[worker].append(request)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass  # Time for the releases.
            self._wake.clear()
            try:
                await self._flush()
            except (RedisError, OSError) as error:
                log.warning("control messages wait: %s", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
            if self._cancels:
                self._wake.set()

    async def close(self, timeout: float) -> None:
        """Send what is left, for `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                while self.pending:
                    await self._flush()
        except (RedisError, OSError, TimeoutError):
            log.warning("%d control messages could not be sent", self.pending)

    async def _flush(self) -> None:
        cancels = dict(list(self._cancels.items())[:CANCELS_PER_CALL])
        messages: list[tuple[str, Control | WebControl]] = [*self._others]
        messages += [(self._keys.control_of(worker), Release(ids)) for worker, ids in self._releases.items()]
        self._others.clear()
        self._releases.clear()
        if not (cancels or messages):
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for request, job in cancels.items():
                await self._cancel(
                    keys=[job.queue, self._keys.cancelled(request), self._keys.attempt(request)],
                    args=[
                        job.message or b"",
                        CANCELLED_SECONDS if job.message is not None else CANCELLED_RUNNING_SECONDS,
                        self._keys.control,
                        encode_msgpack(Cancel(request)),
                        job.attempt,
                        encode_msgpack(Cancel(request, job.attempt + 1)),
                    ],
                    client=pipe,
                )
            for channel, message in messages:
                pipe.publish(channel, encode_msgpack(message))
            await pipe.execute()
        for request in cancels:
            self._cancels.pop(request, None)
