"""One subscription per process: takes every worker's messages to this process and hands each frame to its stream."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from common.client.control import ControlSender
from common.client.counters import ClientCounters
from common.client.queue_watch import Waiting
from common.client.worker_watch import WorkerWatch
from common.errors import TgqError
from common.redis_clients import subscriber_pool
from common.settings import Settings
from common.wire import WIRE_VERSION, Accepted, Frame, Tokens, decode_step_frames

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Receiver(Waiting, Protocol):
    """One open request. These methods return at once and never raise."""

    def receive(self, worker: str, frame: Frame, now: float) -> None:
        """A frame of this request arrived at monotonic time `now`."""

    def missed(self, now: float) -> None:
        """The subscription was interrupted until `now`: frames may be lost."""

    def paused(self, seconds: float) -> None:
        """This process stood still for so long."""

    def check(self, now: float) -> None:
        """Time has passed: look after the request's time limits and its worker."""

    def close(self, error: TgqError | None = None) -> None:
        """Give the request up, because of `error` if there is one."""


class Relay:
    """Holds the open requests, keeps the subscription to `channel` alive and routes frames by request id.

    Frames that nobody waits for are dropped, and their worker is told. Streams never hold the relay up: they take a frame
    without waiting and look after their own limits.
    """

    def __init__(
        self, settings: Settings, channel: str, watch: WorkerWatch, control: ControlSender, counters: ClientCounters
    ) -> None:
        self.channel = channel
        self._pool = subscriber_pool(settings)
        self._silence = settings.redis_timeout
        self._watch = watch
        self._control = control
        self._counters = counters
        self.streams: dict[str, Receiver] = {}
        """Open requests by id."""
        self.listeners: dict[bytes, Callable[[bytes], None]] = {}
        """What takes the messages of other channels; set before `run`, return at once and never raise."""
        self.changed_at = 0.0
        """When the subscription came or went, in monotonic time."""
        self._subscribed = asyncio.Event()
        self._interrupted = False

    @property
    def connected(self) -> bool:
        """Whether Redis has confirmed the subscription and the connection has not failed since."""
        return self._subscribed.is_set()

    def open(self, request: str, stream: Receiver) -> None:
        """Route the frames of `request` to `stream`.

        Raises:
            ValueError: the id is in use.
        """
        if request in self.streams:
            raise ValueError(f"request {request} is running already")
        self.streams[request] = stream

    def close(self, request: str) -> None:
        """Drop the frames of `request` from now on."""
        self.streams.pop(request, None)

    def stray(self, worker: str, frame: Frame, now: float) -> None:
        """Nobody waits for this frame's attempt: if it still runs, its worker can stop it."""
        self._counters.stale_frames += 1
        body = frame.body
        if isinstance(body, Accepted) or (isinstance(body, Tokens) and not body.ends):
            self._control.disown(worker, frame.request, frame.attempt + 1, now)

    async def wait_connected(self) -> None:
        """Wait until subscribed; the caller bounds the time."""
        await self._subscribed.wait()

    async def run(self) -> None:
        """Subscribe, and subscribe again whenever the connection fails, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await self._subscribe(connection)
                pause = _FIRST_PAUSE
                await self._listen(connection)
            except (RedisError, OSError) as error:
                log.warning("subscription interrupted: %s", error)
            finally:
                if self.connected:
                    self._subscribed.clear()
                    self.changed_at = time.monotonic()
                await connection.disconnect(nowait=True)
            self._interrupted = True
            self._watch.interrupted()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _subscribe(self, connection: AbstractConnection) -> None:
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command("SUBSCRIBE", self.channel, *self.listeners)
        for _ in range(1 + len(self.listeners)):
            await connection.read_response()
        self._subscribed.set()
        now = self.changed_at = time.monotonic()
        if self._interrupted:
            self._watch.interrupted()
            for stream in list(self.streams.values()):
                stream.missed(now)

    async def _listen(self, connection: AbstractConnection) -> None:
        """Deliver messages; raises when the connection ends, or answers neither with a message nor to a PING."""
        asked = False
        while True:
            reply = await connection.read_response(timeout=self._silence, disconnect_on_error=False)
            if reply is None:
                if asked:
                    raise RedisConnectionError("the server does not answer")
                await connection.send_command("PING")
                asked = True
                continue
            asked = False
            if reply[0] == b"message":
                self.listeners.get(reply[1], self._deliver)(reply[2])
                # Buffered messages are read without waiting: let the readers have their turn between them.
                await asyncio.sleep(0)

    def _deliver(self, data: bytes) -> None:
        try:
            step = decode_step_frames(data)
        except msgspec.DecodeError as error:
            log.error("unreadable message on the reply channel: %s", error)
            return
        if step.version != WIRE_VERSION:
            log.error("message of wire version %d from worker %s: this is %d", step.version, step.worker, WIRE_VERSION)
            return
        now = time.monotonic()
        self._watch.heard(step.worker, now)
        streams = self.streams
        for frame in step.frames:
            stream = streams.get(frame.request)
            if stream is not None:
                stream.receive(step.worker, frame, now)
            else:
                self.stray(step.worker, frame, now)
