"""Publishes frames from a thread of its own, so that neither engine nor event loop ever waits for Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

import redis
import structlog

from common.redis_clients import sync_redis
from common.settings import Settings
from common.wire import WIRE_VERSION, Frame, FrameBody, StepFrames, encode_msgpack
from workers.outbox import Outbox

log = structlog.get_logger()

GONE_SECONDS = 5.0
"""A channel nobody has listened to for this long belongs to a submitter that is gone."""
GONE_REMEMBERED_SECONDS = 600.0
"""Jobs such a submitter left in the queue are given up as soon as they come, this long."""
PROBE_SECONDS = 1.0
RETRY_SECONDS = 0.25
INTERVAL_SECONDS = 0.004
"""Least time between messages: steps shorter than this run together, which costs their tokens less than it and spares
Redis and the web side most of the work. Longer steps, and whatever comes after a silence, go out at once."""


class Outgoing(NamedTuple):
    """A frame for the submitter that listens on `channel`."""

    channel: str
    request: str
    attempt: int
    body: FrameBody


class Publisher:
    """One PUBLISH per engine step and channel; steps that follow each other fast run together into one message.

    While Redis is away frames wait, bounded, and go out after. `gone` is called, on this thread, for a channel without
    a listener; `channels` says which channels somebody should be listening to, so that submitters of jobs that are
    still silent are noticed too.
    """

    def __init__(
        self, settings: Settings, worker: str, *, channels: Callable[[], Set[str]], gone: Callable[[str], None]
    ) -> None:
        self._client = sync_redis(settings)
        self._worker = worker
        self._channels = channels
        self._gone = gone
        self._changed = threading.Condition()
        self._outbox = Outbox()
        self._due = False
        self._then: list[Callable[[], None]] = []
        """What waits for the frames before it to be published."""
        self._busy = self._failing = False
        self._stopping = False
        self._deaf_since: dict[str, float] = {}
        self._gone_at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, frames: Iterable[Outgoing], then: Callable[[], None] | None = None) -> None:
        """Queue the frames of one step; never blocks on Redis.

        Args:
            then: called on the publisher's thread when Redis has them.
        """
        now = time.monotonic()
        with self._changed:
            for frame in frames:
                self._outbox.add(frame.channel, frame.request, frame.attempt, frame.body, now)
            if then is not None:
                self._then.append(then)
            self._due = True
            self._changed.notify()

    def idle(self) -> bool:
        """Whether everything sent so far is published."""
        with self._changed:
            return not (self._due or self._busy)

    def resend(self, request: str, attempt: int, from_sequence: int) -> None:
        with self._changed:
            self._due = self._outbox.resend(request, attempt, from_sequence) or self._due
            self._changed.notify()

    def release(self, requests: Iterable[str]) -> None:
        with self._changed:
            for request in requests:
                self._outbox.release(request)

    def stop(self, timeout: float) -> None:
        """Send what is due, for `timeout` seconds at most, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)
        self._client.close()

    def _run(self) -> None:
        probe_at = time.monotonic() + PROBE_SECONDS
        next_at = 0.0
        while True:
            with self._changed:
                if not self._due and not self._stopping:
                    self._changed.wait(max(probe_at - time.monotonic(), 0.0))
                if self._stopping and not self._due:
                    return
            time.sleep(max(next_at - time.monotonic(), 0.0))
            next_at = time.monotonic() + INTERVAL_SECONDS
            with self._changed:
                messages, then, self._due = self._outbox.take(), self._then, False
                self._then, self._busy = [], True
            try:
                self._publish(messages)
                messages = []
                for call in then:
                    call()
                then = []
                self._failing = False
                if time.monotonic() >= probe_at:
                    probe_at = time.monotonic() + PROBE_SECONDS
                    self._probe()
            except redis.RedisError as error:
                if not self._failing:
                    log.warning("publish_failed", error=type(error).__name__, messages=len(messages))
                self._failing = True
                probe_at = time.monotonic() + PROBE_SECONDS
                with self._changed:
                    self._outbox.put_back(messages)
                    self._then[:0] = then
                    self._due = self._due or bool(messages or then)
                time.sleep(RETRY_SECONDS)
            except Exception:
                # The boundary of this thread: without it every stream of the worker would fall silent.
                log.exception("publisher_fault")
            finally:
                self._busy = False

    def _publish(self, messages: list[tuple[str, list[Frame]]]) -> None:
        if not messages:
            return
        pipeline = self._client.pipeline(transaction=False)
        for channel, frames in messages:
            pipeline.publish(channel, encode_msgpack(StepFrames(WIRE_VERSION, self._worker, frames)))
        for (channel, _), listeners in zip(messages, pipeline.execute(), strict=True):
            self._heard(channel, listeners)

    def _probe(self) -> None:
        channels = self._channels()
        now = time.monotonic()
        self._deaf_since = {channel: since for channel, since in self._deaf_since.items() if channel in channels}
        self._gone_at = {channel: at for channel, at in self._gone_at.items() if now - at < GONE_REMEMBERED_SECONDS}
        if channels:
            for channel, listeners in self._client.pubsub_numsub(*channels):
                self._heard(channel.decode() if isinstance(channel, bytes) else channel, listeners)
        with self._changed:
            self._outbox.sweep(now)

    def _heard(self, channel: str, listeners: int) -> None:
        if listeners:
            self._deaf_since.pop(channel, None)
            self._gone_at.pop(channel, None)
            return
        now = time.monotonic()
        if channel not in self._gone_at and now - self._deaf_since.setdefault(channel, now) <= GONE_SECONDS:
            return
        self._deaf_since.pop(channel, None)
        self._gone_at[channel] = now
        with self._changed:
            self._outbox.drop_channel(channel)
        log.warning("submitter_gone", channel=channel)
        self._gone(channel)
