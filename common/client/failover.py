"""Sends requests again whose attempt was lost."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from common.celery_message import celery_message
from common.client.counters import Cause, ClientCounters
from common.fair_queue import FAIR_QUEUE
from common.keys import ATTEMPTS_SECONDS, Keys
from common.settings import Settings
from common.tracing.message import begin_sending
from common.wire import Job

if TYPE_CHECKING:
    from common.tracing.tracing import Span, Tracing

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
PUSHES_PER_CALL = 32

Outcome = Literal["sent", "given_up", "cancelled"]

# The newest attempt's number says whether this push arrived before: its answer may have been lost. Known losses are all
# named again, because Redis may have lost its data meanwhile.
_RESEND = (
    FAIR_QUEUE
    + """
-- KEYS: queue, newest attempt, lost attempts, mark of cancellation
-- ARGV: attempt, message, whether it goes to the head (1 or 0), attempts at most, seconds both counts are kept, whether
-- earlier losses are forgotten (1 or 0), then what is known to be lost
if redis.call('EXISTS', KEYS[4]) == 1 then return 'cancelled' end
if ARGV[6] == '1' then redis.call('DEL', KEYS[3]) end
if #ARGV > 6 then
  redis.call('SADD', KEYS[3], unpack(ARGV, 7))
  redis.call('EXPIRE', KEYS[3], ARGV[5])
end
if redis.call('SCARD', KEYS[3]) >= tonumber(ARGV[4]) then return 'given_up' end
if tonumber(redis.call('GET', KEYS[2]) or 1) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[5])
  put(KEYS[1], ARGV[2], ARGV[3] == '1')
end
return 'sent'
"""
)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A job's message as it is in its queue, or with a worker that has not accepted it."""

    queue: str
    message: bytes
    tag: str
    span: Span | None = None
    """Of the sending, when the job is traced."""

    @classmethod
    def of(cls, job: Job, queue: str, tracing: Tracing | None = None, cause: Cause | None = None) -> SentMessage:
        """
        Args:
            cause: of an attempt after the first.
        """
        tag = str(uuid.uuid4())
        if tracing is None:
            return cls(queue, celery_message(job, queue, tag), tag)
        # The attempts are siblings: the job itself keeps the context that they have in common.
        span = begin_sending(tracing, job, queue, tag, cause)
        job = msgspec.structs.replace(job, trace=span.headers, sent_at=time.time())
        return cls(queue, celery_message(job, queue, tag), tag, span)

    def sending(self) -> AbstractContextManager[object]:
        """Enter it to push the message, once."""
        return nullcontext() if self.span is None else self.span


class Requester(Protocol):
    """The request that is sent again."""

    @property
    def ended(self) -> bool:
        """Whether nobody waits for it any more."""

    def resending(self, message: SentMessage) -> None:
        """From now on the message may be in its queue."""

    def resent(self, outcome: Outcome, now: float) -> None:
        """Redis has decided, at monotonic time `now`."""


@dataclass(slots=True, eq=False)
class NextAttempt:
    job: Job
    queue: str
    cause: Cause
    losses: Sequence[str]
    """`{attempt}:{worker}` of the attempts that count against the request."""
    forgets: bool
    """Whether no others do."""
    urgent: bool
    """To the head of its tenant's queue: the request has had its turn."""
    requester: Requester
    message: SentMessage | None = None
    """Once it may be in the queue."""

    def settled(self, outcome: str) -> None:
        """It is not sent any more."""
        if self.message is not None and self.message.span is not None:
            self.message.span.set({"tgq.outcome": outcome})
            self.message.span.end()


class Resender:
    """Pushes attempts in the background, over one pipelined call at a time, until Redis has them or nobody wants them.

    Never refused by a full queue: the request was admitted before.
    """

    def __init__(
        self,
        redis_client: redis.asyncio.Redis,
        keys: Keys,
        settings: Settings,
        counters: ClientCounters,
        tracing: Tracing | None = None,
    ) -> None:
        self._redis = redis_client
        self._keys = keys
        self._max_attempts = settings.max_attempts
        self._counters = counters
        self._tracing = tracing
        self._resend = redis_client.register_script(_RESEND)
        self._pending: list[NextAttempt] = []
        self._wake = asyncio.Event()

    def send(self, attempt: NextAttempt, pause: float = 0.0) -> None:
        """Push soon, `pause` seconds from now at the earliest; never waits."""
        if pause:
            asyncio.get_running_loop().call_later(pause, self.send, attempt)
            return
        self._pending.append(attempt)
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                try:
                    await self._flush()
                except (RedisError, OSError) as error:
                    log.warning("%d requests wait to be sent again: %s", len(self._pending), type(error).__name__)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _flush(self) -> None:
        for attempt in self._pending:
            if attempt.requester.ended:
                attempt.settled("abandoned")
        self._pending = [attempt for attempt in self._pending if not attempt.requester.ended]
        attempts = self._pending[:PUSHES_PER_CALL]
        if not attempts:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for attempt in attempts:
                await self._push(attempt, pipe)
            # One push that is refused must not repeat the others.
            outcomes = await pipe.execute(raise_on_error=False)
        failure: Exception | None = None
        sent: Counter[Cause] = Counter()
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failure = outcome
                continue
            self._pending.remove(attempt)
            if outcome == b"sent":
                sent[attempt.cause] += 1
            attempt.settled(outcome.decode())
            attempt.requester.resent(outcome.decode(), time.monotonic())
        if sent:
            self._counters.resent += sent
            log.warning("requests sent again: %s", ", ".join(f"{cause} {count}" for cause, count in sent.items()))
        if failure is not None:
            raise failure

    async def _push(self, attempt: NextAttempt, pipe: redis.asyncio.client.Pipeline) -> None:
        job = attempt.job
        if attempt.message is None:
            attempt.message = SentMessage.of(job, attempt.queue, self._tracing, attempt.cause)
            attempt.requester.resending(attempt.message)
        keys = self._keys
        await self._resend(
            keys=[attempt.queue, keys.attempt(job.id), keys.attempts(job.id), keys.cancelled(job.id)],
            args=[
                job.attempt,
                attempt.message.message,
                int(attempt.urgent),
                self._max_attempts,
                ATTEMPTS_SECONDS,
                int(attempt.forgets),
                *attempt.losses,
            ],
            client=pipe,
        )
