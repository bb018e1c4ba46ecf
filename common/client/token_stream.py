"""The tokens of one request, as they come, whichever worker they come from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from common.client.attempts import Attempts
from common.client.counters import Cause
from common.client.dispatch import Push
from common.client.failover import NextAttempt, Outcome, SentMessage
from common.client.frame_order import FrameOrder
from common.client.hearing import Hearing
from common.client.parts import Parts
from common.client.progress import Progress, TokensMissing
from common.client.queue_watch import Watched
from common.client.time_limits import TimeLimits, with_deadline
from common.client.timings import Timings
from common.client.token_buffer import TokenBuffer
from common.errors import (
    DeadlineExceeded,
    GenerationFailed,
    IncompleteGeneration,
    Overloaded,
    RequestCancelled,
    ServiceUnavailable,
    TgqError,
    error_from_worker,
)
from common.wire import Accepted, Cancelled, Failed, Finish, Frame, FrameBody, Job, Tokens

_ENDED_BY_WORKER: set[Cause] = {"worker_failed", "handed_over", "cancelled"}


class TokenStream:
    """One request from its submission to its end; made by `GenerationClient.generate`, which describes its use.

    `receive`, `missed`, `paused` and `check` are called by the relay and the client's sweep, `resending` and `resent` by
    the resender, `not_found` and `missing` by the queue watch. They hold everything that can end a request or make another
    attempt of it, so that a reader needs no timer of its own; each end releases the relay's slot and is final.
    """

    def __init__(self, job: Job, parts: Parts, timeout: float | None = None) -> None:
        now, unix_now = time.monotonic(), time.time()
        settings = parts.settings
        self._limits = TimeLimits(job, settings, timeout, now, unix_now)
        job = with_deadline(job, timeout, unix_now)
        self.timings = Timings(submitted=now)
        self.finish: Finish | None = None
        """Set once the last token has arrived; of several children that of the last to end."""
        self.error: TgqError | None = None
        """Why the request ended, if not by itself."""
        self.watched: Watched | None = None
        """See `Waiting`."""
        self._parts = parts
        self._settings = settings
        self._queue = parts.keys.queue(job.model, job.job_class)
        self._order = FrameOrder(job.attempt)
        self._progress = Progress(job)
        self._attempts = Attempts(job, self._progress, settings.max_attempts)
        self._hearing = Hearing(now)
        self._message: SentMessage | None = None
        """The newest attempt's, unless it is known to have left the queue."""
        self._push: Push | None = None
        """The first attempt's."""
        self._sent = False
        """Whether a message may be in the queue."""
        self._ended = self._resumed = False
        self._unread = TokenBuffer()

    # -- the reader's side

    @property
    def job(self) -> Job:
        """The newest attempt."""
        return self._attempts.job

    @property
    def worker(self) -> str | None:
        """Id of the worker that runs the request; None while it is queued."""
        return self._order.worker

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive (there may be unread tokens)."""
        return self._ended

    @property
    def generated_ids(self) -> list[int]:
        """All tokens so far, earlier attempts' included: what another attempt would go on from."""
        return self._progress.ids[0]

    @property
    def sibling_ids(self) -> list[list[int]]:
        """The same of the children 1, 2, ..."""
        return self._progress.ids[1:]

    def resume(self, tokens: Iterable[Tokens]) -> None:
        """Before entering: these have been read elsewhere, from attempts before the job's own; go on behind them.

        The next attempt is then not refused by a full queue, and waits in front when it has tokens.
        """
        for body in tokens:
            self._progress.take(body)
        self._resumed = True
        self._ended = not self._progress.unfinished

    async def __aenter__(self) -> Self:
        if self.error is not None:
            raise self.error  # Closed before it began.
        if self._push is not None:
            raise RuntimeError("a token stream is entered once")
        if self._ended:
            return self
        self._parts.relay.open(self.job.id, self)
        if self._resumed:
            self._sent = True  # by somebody
            self.timings.queued = time.monotonic()
            self._send_again("resumed", self.timings.queued)
            return self
        try:
            await self._send()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tokens:
        while not self._unread:
            if self.error is not None:
                raise self.error
            if self._ended:
                raise StopAsyncIteration
            await self._unread.wait()
        return self._unread.take()

    async def ready(self, timeout: float | None = None) -> bool:
        """Wait until the next turn of the iteration would not wait, or `timeout` seconds; returns whether it is so.

        Takes nothing, so that a server can send a keep-alive in between.
        """
        if not (self._unread or self._ended):
            try:
                async with asyncio.timeout(timeout):
                    await self._unread.wait()
            except TimeoutError:
                pass
        return bool(self._unread or self._ended)

    def close(self, error: TgqError | None = None) -> None:
        """Give the request up, unless it has ended; cancels its job wherever it is. Never waits; idempotent.

        A reader that still waits gets what has arrived and then `error`, which is an `IncompleteGeneration` by default.
        """
        if not self._ended:
            self._fail(error or IncompleteGeneration("The request was given up before its end", reason="closed"))

    # -- the relay's side

    def receive(self, worker: str, frame: Frame, now: float) -> None:
        """See `Receiver`."""
        order, hearing = self._order, self._hearing
        bodies = order.push(worker, frame)
        if bodies:
            hearing.progressed(now)
            for body in bodies:
                self._take(body, worker, now)
                if self._ended or self._order is not order:
                    return
        elif frame.attempt == order.attempt and worker == order.worker:
            hearing.answered()
        elif frame.attempt <= order.attempt:
            self._parts.relay.stray(worker, frame, now)
        if order.gap and hearing.gap(now):
            self._ask(now)

    def missed(self, now: float) -> None:
        """See `Receiver`."""
        self._hearing.missed(now)
        if self.watched is not None:
            self.watched.hurry(now)
        if self._sent:
            self._ask(now)

    def paused(self, seconds: float) -> None:
        """See `Receiver`."""
        self._hearing.paused(seconds)

    def check(self, now: float) -> None:
        """See `Receiver`."""
        worker = self._order.worker
        if now >= self._limits.total_at:
            self._fail(DeadlineExceeded("The request was not finished in time", reason="total"))
        elif worker is None:
            if self._limits.waited_too_long(now):
                self._fail(DeadlineExceeded("No worker took the request in time", reason="queue_wait"))
        else:
            self._check_worker(worker, now)
        if not self._ended and self._hearing.question_due(now, accepted=self._order.worker is not None):
            self._ask(now)

    def _check_worker(self, worker: str, now: float) -> None:
        relay, heard_at, limit = self._parts.relay, self._hearing.progress_at, self._limits.stall
        silence = now - max(heard_at, relay.changed_at)
        if now - heard_at > self._limits.too_long_silence:
            self._fail(IncompleteGeneration("The worker has gone silent", reason="stall"))
        elif not relay.connected:
            if silence > limit:
                self._fail(IncompleteGeneration("Redis has been away for too long", reason="redis"))
        elif self._parts.watch.lost(worker):
            self._fail_over("worker_lost", "its worker was lost", now)
        elif silence > limit:
            self._fail_over("stalled", "its worker went silent", now)
        elif self._hearing.unanswered(now):
            self._fail_over("frames_lost", "parts of its answer were lost", now)

    def _ask(self, now: float) -> None:
        """Ask for what may be missing, and for the frame before: a worker that has nothing new answers, too."""
        order = self._order
        self._hearing.asked(now, expects_answer=order.worker is not None)
        self._parts.control.resend(order.worker, self.job.id, order.attempt, max(order.next_sequence - 1, 0))

    def _take(self, body: FrameBody, worker: str, now: float) -> None:
        if self._message is not None:
            self._message = self.watched = None
        if self.timings.accepted is None:
            self.timings.accepted = now
        match body:
            case Tokens():
                self._take_tokens(body, worker, now)
            case Accepted():
                pass
            case Failed(handed_over=True):
                self._fail_over("handed_over", "its worker stopped", now, counts=False)
            case Failed(retryable=True):
                self._fail_over("worker_failed", body.message.removeprefix(GenerationFailed.prefix), now)
            case Failed():
                self._end_by_worker(worker, error_from_worker(body.error_type, body.message))
            case Cancelled():
                # Not by us. If somebody else did it, Redis knows.
                self._fail_over("cancelled", "its worker cancelled it", now, counts=False)

    def _take_tokens(self, body: Tokens, worker: str, now: float) -> None:
        try:
            new = self._progress.take(body)
        except TokensMissing:
            self._fail_over("frames_lost", "parts of its answer were lost", now)
            return
        except IncompleteGeneration as error:
            self._fail(error)
            return
        if new is None:
            return
        if new.tokens:
            self.timings.last_token = now
            if self.timings.first_token is None:
                self.timings.first_token = now
        if not self._unread.put(new, now):
            self._fail(IncompleteGeneration("The client reads too slowly", reason="slow_reader"))
            return
        if new.ends:
            self.finish = new.finish
            self._end_by_worker(worker, None)
        self._unread.wake()

    # -- another attempt

    def not_found(self, now: float) -> None:
        """See `Waiting`."""
        self._ask(now)

    def missing(self, now: float) -> None:
        """See `Waiting`."""
        self._fail_over("not_queued", "it was lost before a worker took it", now, counts=False)

    def resending(self, message: SentMessage) -> None:
        """See `Requester`."""
        self._message = message
        self._sent = True

    def resent(self, outcome: Outcome, now: float) -> None:
        """See `Requester`."""
        if self._ended:
            return
        if outcome == "given_up":
            self._give_up()
        elif outcome == "cancelled":
            self._fail(RequestCancelled())
        elif self._message is not None:
            self.watched = Watched(self._message, now)

    def _fail_over(self, cause: Cause, why: str, now: float, *, counts: bool = True) -> None:
        """Make another attempt, from the tokens so far.

        Args:
            why: see `Attempts.lost`, which also says what `counts`.
        """
        worker, attempts = self._order.worker, self._attempts
        attempts.lost(worker, why, counts=counts)
        if worker is not None and cause in _ENDED_BY_WORKER:
            self._parts.control.release(worker, self.job.id)
        elif worker is not None:
            self._parts.control.disown(worker, self.job.id, self.job.attempt + 1, now)
        if attempts.exhausted:
            self._give_up()
            return
        if worker is not None:
            self._limits.waits_again(now)
        self._send_again(cause, now)

    def _send_again(self, cause: Cause, now: float) -> None:
        attempts = self._attempts
        job = attempts.next(time.time() + self._limits.left_to_wait(now))
        self._order = FrameOrder(job.attempt)
        self._hearing = Hearing(now)
        self._message = self.watched = None
        urgent = self.timings.accepted is not None or self._progress.total > 0
        following = NextAttempt(job, self._queue, cause, attempts.losses.copy(), attempts.forgets, urgent, self)
        self._parts.resender.send(following, attempts.pause)

    def _give_up(self) -> None:
        self._parts.counters.given_up += 1
        error = GenerationFailed(self._attempts.epitaph)
        error.reason = "attempts"
        self._fail(error)

    # -- inside

    async def _send(self) -> None:
        message = self._message = SentMessage.of(self.job, self._queue, self._parts.tracing)
        try:
            async with asyncio.timeout(self._settings.redis_timeout):
                if not self._parts.relay.connected:
                    await self._parts.relay.wait_connected()
                self._sent = True
                with message.sending():
                    self._push = self._parts.dispatcher.push(self._queue, message.message)
                    # When the caller is cancelled, what becomes of the push must still be known.
                    await asyncio.shield(self._push.done)
        except Overloaded:
            self._sent = False
            raise
        except TimeoutError as error:
            raise ServiceUnavailable("The queue (Redis) cannot be reached") from error
        self.timings.queued = time.monotonic()
        if self._message is message:
            self.watched = Watched(message, self.timings.queued)

    def _end_by_worker(self, worker: str, error: TgqError | None) -> None:
        self._parts.control.release(worker, self.job.id)
        self._end(error)

    def _fail(self, error: TgqError) -> None:
        """End the request from this side and cancel its job, after the push if that is still under way."""
        self._end(error)
        if self._push is None:
            self._cancel_job()
        else:
            self._push.drop(self._not_wanted)

    def _not_wanted(self) -> None:
        assert self._push is not None
        pushed = self._push.done
        error = pushed.exception()
        if isinstance(error, Overloaded) or (error is None and pushed.result() is None):
            self._sent = False
        self._cancel_job()

    def _cancel_job(self) -> None:
        if self._sent:
            message = None if self._message is None else self._message.message
            self._parts.control.cancel(self.job.id, self._queue, message, self.job.attempt)
        self._message = None

    def _end(self, error: TgqError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.error = error
        self.watched = None
        self.timings.ended = time.monotonic()
        self._parts.relay.close(self.job.id)
        self._unread.wake()
