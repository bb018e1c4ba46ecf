"""Puts jobs into their queues: one bounded script call for all that are sent together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import redis.asyncio
from redis.exceptions import RedisError

from common.errors import Overloaded, ServiceUnavailable, TgqError
from common.fair_queue import FAIR_QUEUE
from common.queue_depth import retry_after
from common.settings import Settings

log = logging.getLogger(__name__)

BYTES_PER_CALL = 1_000_000
"""Redis does nothing else meanwhile; a longer message goes alone."""

SUBMIT = (
    FAIR_QUEUE
    + """
-- KEYS: the queue of each message. ARGV: jobs a queue may hold, messages. Returns two numbers for each: how many waited
-- before and 0, or, if that was too many, -1 and how many seconds they will wait.
local limit, outcome = tonumber(ARGV[1]), {}
for i, queue in ipairs(KEYS) do
  local waiting = jobs_waiting(queue)
  if waiting >= limit then
    outcome[2 * i - 1], outcome[2 * i] = -1, seconds_to_drain(queue, seconds_now())
  else
    put(queue, ARGV[i + 1], false)
    outcome[2 * i - 1], outcome[2 * i] = waiting, 0
  end
end
return outcome
"""
)


class Push:
    """One message on its way into its queue.

    `done` gets how many jobs of all tenants were waiting before it, None if it was never sent because it was not `wanted` any
    more, or an error:

        Overloaded: the queue is full; the message is not in it. `retry_after` says when what waits should have been taken.
        ServiceUnavailable: Redis did not answer or refused. The message *may* be in the queue: cancel it.
    """

    __slots__ = ("_then", "done", "message", "queue")

    def __init__(self, queue: str, message: bytes, done: asyncio.Future[int | None]) -> None:
        self.queue = queue
        self.message = message
        self.done = done
        self._then: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        return self._then is None

    def drop(self, then: Callable[[], None]) -> None:
        """It need not be sent any more, if it is not under way already; `then` is called once `done` is set."""
        self._then = then
        if self.done.done():
            then()

    def tell(self, outcome: int | TgqError | None) -> None:
        if isinstance(outcome, TgqError):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)
        if self._then is not None:
            self._then()


class Dispatcher:
    """Sends messages to queues that hold `queue_limit` messages at most, those of all tenants together.

    One call at a time, with everything that has come since the last one: a call costs a process more than the messages in it.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, settings: Settings) -> None:
        self._submit = redis_client.register_script(SUBMIT)
        self._limit = settings.queue_limit
        self._timeout = settings.redis_timeout
        self._pushes: list[Push] = []
        self._wake = asyncio.Event()
        self._under_way: list[Push] = []

    @property
    def idle(self) -> bool:
        """Whether it is known of all messages what became of them."""
        return not self._pushes and not self._under_way

    def push(self, queue: str, message: bytes) -> Push:
        """Append `message` to what its tenant has in `queue`, unless the queue is full; never waits."""
        push = Push(queue, message, asyncio.get_running_loop().create_future())
        self._pushes.append(push)
        self._wake.set()
        return push

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next():
                await self._send(batch)

    def close(self) -> None:
        """What has not been sent is not sent any more."""
        for push in self._pushes:
            push.tell(None)
        self._pushes = []

    def _next(self) -> list[Push]:
        batch: list[Push] = []
        size = 0
        for place, push in enumerate(self._pushes):
            if not push.wanted:
                push.tell(None)
                continue
            size += len(push.message)
            if batch and size > BYTES_PER_CALL:
                self._pushes = self._pushes[place:]
                return batch
            batch.append(push)
        self._pushes = []
        return batch

    async def _send(self, batch: list[Push]) -> None:
        outcome: list[int] = []
        self._under_way = batch
        try:
            async with asyncio.timeout(self._timeout):
                outcome = await self._submit(
                    keys=[push.queue for push in batch], args=[self._limit, *(push.message for push in batch)]
                )
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("%d jobs could not be queued: %s", len(batch), type(error).__name__)
        finally:  # whatever happens: somebody waits for each
            for place, push in enumerate(batch):
                if not outcome:
                    push.tell(ServiceUnavailable("The queue (Redis) cannot be reached"))
                elif (waiting := outcome[2 * place]) >= 0:
                    push.tell(waiting)
                else:
                    seconds = retry_after(outcome[2 * place + 1])
                    push.tell(Overloaded("Model is overloaded", retry_after=seconds))
            self._under_way = []
