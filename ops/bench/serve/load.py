"""Sends the requests of one load, and keeps watch over the client itself."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from ops.bench.serve.client import Client
from ops.bench.serve.record import Record

WATCH_SECONDS = 0.01
_SHOW_SECONDS = 0.5

Request = tuple[bytes, int]
"""A body, and how many tokens it asks for."""
Show = Callable[[int, int, int], None]
"""Answered, failed, under way."""


@dataclass
class Outcome:
    """What became of one load; moments are seconds of `time.perf_counter`."""

    started: float = 0.0
    ended: float = 0.0
    records: list[Record] = field(default_factory=list)
    """Requests that have ended, well or not."""
    sent: int = 0
    last_intended: float = 0.0
    """When the last request was to be sent; 0: no times were given."""
    unfinished: int = 0
    """Requests that were given up because the run was stopped."""
    under_way: int = 0
    peak: int = 0
    """Most requests under way at once."""
    loop_lag: list[float] = field(default_factory=list)
    """Seconds by which the client's event loop was late, looked at a hundred times a second."""
    cpu_share: float = 0.0
    """Share of one core that the client used."""


class LoadRun:
    """One load on one server.

    Args:
        requests: what to send, in order; each is made when its turn comes.
        stop: ends the run early: what is under way is given up.
        show: told of the progress twice a second.
    """

    def __init__(self, client: Client, requests: Iterator[Request], stop: asyncio.Event, show: Show) -> None:
        self._client, self._requests, self._stop, self._show = client, requests, stop, show
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._error: BaseException | None = None
        self._failed = 0
        self._outcome = Outcome()

    async def at_rate(
        self, moments: Iterator[float], count: int | None, seconds: float | None, most: int | None
    ) -> Outcome:
        """Open loop: send at these moments, in seconds from now, `count` requests or up to `seconds`.

        Args:
            most: requests under way at once; the others wait, and their latency runs.
        """
        room = asyncio.Semaphore(most) if most is not None else None

        async def send() -> None:
            for moment in moments:
                if self._outcome.sent == count or (seconds is not None and moment >= seconds):
                    return
                request = next(self._requests)
                intended = self._outcome.last_intended = self._outcome.started + moment
                await _until(intended)
                self._outcome.sent += 1
                self._start(self._one(request[0], Record(intended, request[1], woke=time.perf_counter()), room))

        return await self._run([send()])

    async def at_width(self, width: int, count: int | None, seconds: float | None) -> Outcome:
        """Closed loop: keep `width` requests under way until `count` were sent or `seconds` are over."""

        async def send() -> None:
            while self._outcome.sent != count:
                now = time.perf_counter()
                if seconds is not None and now >= self._outcome.started + seconds:
                    return
                self._outcome.sent += 1
                body, tokens = next(self._requests)
                now = time.perf_counter()
                await self._one(body, Record(now, tokens, woke=now), None)

        return await self._run([send() for _ in range(width if count is None else min(width, count))])

    async def _run(self, senders: list[Coroutine[None, None, None]]) -> Outcome:
        outcome = self._outcome
        watch = asyncio.create_task(self._watch())
        # A collection of all objects would stop the clocks of all streams; there are few cycles to collect.
        gc.collect()
        gc.disable()
        try:
            cpu, outcome.started = time.process_time(), time.perf_counter()
            for sender in senders:
                self._start(sender)
            await self._end()
            outcome.ended = time.perf_counter()
            outcome.cpu_share = (time.process_time() - cpu) / (outcome.ended - outcome.started)
        finally:
            gc.enable()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        return outcome

    async def _end(self) -> None:
        """Wait until nothing is left to do, or `stop`."""
        stop, idle = asyncio.create_task(self._stop.wait()), asyncio.create_task(self._idle.wait())
        await asyncio.wait({stop, idle}, return_when=asyncio.FIRST_COMPLETED)
        left = [stop, idle, *self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._error is not None:
            raise self._error

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._idle.set()
        if not self._tasks:
            self._idle.set()

    async def _one(self, body: bytes, record: Record, room: asyncio.Semaphore | None) -> None:
        outcome = self._outcome
        held = False
        try:
            if room is not None:
                held = await room.acquire()
            outcome.under_way += 1
            outcome.peak = max(outcome.peak, outcome.under_way)
            try:
                await self._client.send(body, record)
            finally:
                outcome.under_way -= 1
                if held and room is not None:
                    room.release()
        except asyncio.CancelledError:
            outcome.unfinished += 1
            raise
        outcome.records.append(record)
        self._failed += bool(record.failure)

    async def _watch(self) -> None:
        """Measure how late the event loop is, and show the progress."""
        due = time.perf_counter() + WATCH_SECONDS
        show = 0.0
        while True:
            await asyncio.sleep(due - time.perf_counter())
            now = time.perf_counter()
            self._outcome.loop_lag.append(max(0.0, now - due))
            if now >= show:
                show = now + _SHOW_SECONDS
                self._show(len(self._outcome.records) - self._failed, self._failed, self._outcome.under_way)
            due = now + WATCH_SECONDS


async def _until(moment: float) -> None:
    """Sleep up to a moment of `time.perf_counter`, never shorter: timers may be early by half a millisecond."""
    left = moment - time.perf_counter()
    while left > 0:
        await asyncio.sleep(left)
        left = moment - time.perf_counter()
