"""The tokens of one request, as they come."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType
from typing import Self

from common.celery_message import celery_message
from common.client.control import ControlSender
from common.client.dispatch import Dispatcher
from common.client.frame_order import FrameOrder
from common.client.relay import Relay
from common.client.timings import Timings
from common.client.worker_watch import WorkerWatch
from common.errors import (
    DeadlineExceeded,
    IncompleteGeneration,
    Overloaded,
    ServiceUnavailable,
    TgqError,
    error_from_worker,
)
from common.settings import Settings
from common.wire import Accepted, Cancelled, Failed, Finish, Frame, FrameBody, Job, Tokens

UNREAD_FRAMES = 1024
"""Frames a reader may be behind ..."""
SLOW_READER_SECONDS = 1.0
"""... once it has taken nothing for this long; a burst after an interruption is not the reader's fault."""
GAP_SECONDS = 10.0
"""A gap that the worker does not close in this time (with Redis connected) ends the request."""
ASK_SECONDS = 1.0
"""Missing frames are asked for again after this time ..."""
SILENCE_ASK_SECONDS = 5.0
"""... and the frames that may have been lost at the end of what arrived, when nothing comes, after this time."""


class TokenStream:
    """One request from its submission to its end; made by `GenerationClient.generate`, which describes its use.

    `receive`, `missed` and `check` are called by the relay and the client's sweep. They hold everything that can end a
    request, so that a reader needs no timer of its own; each end releases the relay's slot and is final.
    """

    def __init__(
        self,
        job: Job,
        queue: str,
        relay: Relay,
        dispatcher: Dispatcher,
        control: ControlSender,
        watch: WorkerWatch,
        settings: Settings,
    ) -> None:
        self.job = job
        self.timings = Timings(submitted=time.monotonic())
        self.generated_ids: list[int] = list(job.generated_ids)
        """All tokens so far, earlier attempts' included: what another attempt would go on from."""
        self.sibling_ids = [
            list(job.sibling_ids[i]) if i < len(job.sibling_ids) else [] for i in range(job.parameters.children - 1)
        ]
        """The same of the children 1, 2, ..."""
        self.finish: Finish | None = None
        """Set once the last token has arrived; of several children that of the last to end."""
        self.error: TgqError | None = None
        """Why the request ended, if not by itself."""
        self._queue = queue
        self._relay = relay
        self._dispatcher = dispatcher
        self._control = control
        self._watch = watch
        self._settings = settings
        self._order = FrameOrder(job.attempt)
        self._message: bytes | None = None
        self._sending: asyncio.Task[None] | None = None
        self._sent = False
        """Whether the message may be in the queue."""
        self._ended = False
        self._finished: set[int] = set()
        """Children whose end has arrived."""
        self._unread: deque[Tokens] = deque()
        self._unread_since = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._heard_at = self._asked_at = self._gap_since = self._missed_at = 0.0
        wait = settings.queue_timeout if job.deadline is None else job.deadline - time.time()
        self._give_up_at = self.timings.submitted + wait

    # -- the reader's side

    @property
    def worker(self) -> str | None:
        """Id of the worker that runs the request; None while it is queued."""
        return self._order.worker

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive (there may be unread tokens)."""
        return self._ended

    async def __aenter__(self) -> Self:
        if self.error is not None:
            raise self.error  # Closed before it began.
        if self._sending is not None:
            raise RuntimeError("a token stream is entered once")
        self._relay.open(self.job.id, self)
        # In a task of its own: when the caller is cancelled, what became of the push must still be known.
        self._sending = asyncio.create_task(self._send())
        try:
            await asyncio.shield(self._sending)
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
            await self._wait()
        return self._take_unread()

    async def ready(self, timeout: float | None = None) -> bool:
        """Wait until the next turn of the iteration would not wait, or `timeout` seconds; returns whether it is so.

        Takes nothing, so that a server can send a keep-alive in between.
        """
        if not (self._unread or self._ended):
            try:
                async with asyncio.timeout(timeout):
                    await self._wait()
            except TimeoutError:
                pass
        return bool(self._unread or self._ended)

    def close(self) -> None:
        """Give the request up, unless it has ended; cancels its job wherever it is. Never waits; idempotent.

        A reader that still waits gets what has arrived and then `IncompleteGeneration`.
        """
        if not self._ended:
            self._fail(IncompleteGeneration("The request was given up before its end"))

    # -- the relay's side

    def receive(self, worker: str, frame: Frame, now: float) -> None:
        """See `Receiver`."""
        bodies = self._order.push(worker, frame)
        for body in bodies:
            if not self._ended:
                self._heard_at = now
                self._missed_at = 0.0
                self._take(body, worker, now)
        if not self._order.gap:
            self._gap_since = 0.0
        elif not self._gap_since and not self._ended:
            self._gap_since = now
            self._ask(now)

    def missed(self, now: float) -> None:
        """See `Receiver`."""
        self._missed_at = now
        if self._gap_since:
            self._gap_since = now
        if self._sent:
            self._ask(now)

    def check(self, now: float) -> None:
        """See `Receiver`."""
        worker = self._order.worker
        if worker is None:
            if now >= self._give_up_at:
                self._fail(DeadlineExceeded("No worker took the request in time"))
                return
        elif now - self._heard_at > self._settings.stall_timeout:
            self._fail(IncompleteGeneration("The worker has gone silent"))
            return
        elif self._watch.lost(worker):
            self._fail(IncompleteGeneration("The worker that ran the request is gone"))
            return
        elif self._gap_since and self._relay.connected and now - self._gap_since > GAP_SECONDS:
            self._fail(IncompleteGeneration("Parts of the answer were lost"))
            return
        if self._question_due(worker, now):
            self._ask(now)

    def _question_due(self, worker: str | None, now: float) -> bool:
        if worker is None and not self._missed_at:
            return False
        urgent = self._gap_since or (self._missed_at and now - self._missed_at < GAP_SECONDS)
        return now - max(self._heard_at, self._asked_at) >= (ASK_SECONDS if urgent else SILENCE_ASK_SECONDS)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        self._control.resend(self._order.worker, self.job.id, self.job.attempt, self._order.next_sequence)

    def _take(self, body: FrameBody, worker: str, now: float) -> None:
        if self.timings.accepted is None:
            self.timings.accepted = now
            self._message = None
        match body:
            case Tokens():
                self._take_tokens(body, worker, now)
            case Accepted():
                pass
            case Failed():
                self._end_by_worker(worker, error_from_worker(body.error_type, body.message))
            case Cancelled():
                self._end_by_worker(worker, IncompleteGeneration("The request was cancelled"))

    def _take_tokens(self, body: Tokens, worker: str, now: float) -> None:
        children = [self.generated_ids, *self.sibling_ids]
        ids = children[body.child] if body.child < len(children) else []
        known = len(ids) - body.offset
        if known < 0 or body.child >= len(children):
            self._fail(IncompleteGeneration("Parts of the answer were lost"))
            return
        if known:
            # A second worker began the same attempt anew; equal positions hold equal tokens.
            body = Tokens(len(ids), body.tokens[known:], body.finish, body.child, body.unfinished)
        if body.tokens:
            ids.extend([token.id for token in body.tokens])
            self.timings.last_token = now
            if self.timings.first_token is None:
                self.timings.first_token = now
        elif body.finish is None or (body.child in self._finished and not body.ends):
            return
        if not self._unread:
            self._unread_since = now
        elif len(self._unread) >= UNREAD_FRAMES and now - self._unread_since > SLOW_READER_SECONDS:
            self._unread.clear()
            self._fail(IncompleteGeneration("The client reads too slowly"))
            return
        self._unread.append(body)
        if body.finish is not None:
            self._finished.add(body.child)
        if body.ends:
            self.finish = body.finish
            self._end_by_worker(worker, None)
        self._wake()

    # -- inside

    async def _send(self) -> None:
        message = self._message = celery_message(self.job, self._queue)
        try:
            async with asyncio.timeout(self._settings.redis_timeout):
                await self._relay.wait_connected()
                self._sent = True
                await self._dispatcher.push(self._queue, message)
        except Overloaded:
            self._sent = False
            raise
        except TimeoutError as error:
            raise ServiceUnavailable("The queue cannot be reached") from error
        self.timings.queued = time.monotonic()

    def _end_by_worker(self, worker: str, error: TgqError | None) -> None:
        self._control.release(worker, self.job.id)
        self._end(error)

    def _fail(self, error: TgqError) -> None:
        """End the request from this side and cancel its job, after the push if that is still under way."""
        self._end(error)
        if self._sending is None:
            return
        if self._sending.done():
            self._cancel_job(self._sending)
        else:
            self._sending.add_done_callback(self._cancel_job)

    def _cancel_job(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled():
            sending.exception()  # Marks it as seen: the one who waited for it may be gone.
        if self._sent:
            self._control.cancel(self.job.id, self._queue, self._message)
        self._message = None

    def _end(self, error: TgqError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.error = error
        self.timings.ended = time.monotonic()
        self._relay.close(self.job.id)
        self._wake()

    def _take_unread(self) -> Tokens:
        first = last = self._unread.popleft()
        if not self._unread or self._unread[0].child != first.child:
            return first
        tokens = list(first.tokens)
        while self._unread and self._unread[0].child == first.child:
            last = self._unread.popleft()
            tokens.extend(last.tokens)
        return Tokens(first.offset, tokens, last.finish, first.child, last.unfinished)

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("a token stream has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
