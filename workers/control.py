"""Hears what submitters want of running requests: cancel, send again, forget."""

from __future__ import annotations

import threading

import msgspec
import redis
import structlog

from common.keys import Keys
from common.redis_clients import sync_redis
from common.settings import Settings
from common.wire import Cancel, Release, Resend, decode_control
from workers.dispatcher import Dispatcher
from workers.publisher import Publisher

log = structlog.get_logger()

RECONNECT_SECONDS = 0.25
LISTEN_SECONDS = 0.5


class ControlListener:
    """A thread with a subscription of its own; it reconnects for as long as the worker lives."""

    def __init__(self, settings: Settings, worker: str, dispatcher: Dispatcher, publisher: Publisher) -> None:
        self._keys = Keys(settings.key_prefix)
        self._channels = (self._keys.control, self._keys.control_of(worker))
        self._client = sync_redis(settings)
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(LISTEN_SECONDS + 3)
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                log.warning("control_reconnects", error=type(error).__name__)
            except Exception:
                # The boundary of this thread: without it no request of this worker could be cancelled any more.
                log.exception("control_fault")
            self._stopping.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with self._client.pubsub() as subscription:  # type: ignore[no-untyped-call]
            subscription.subscribe(*self._channels)
            confirmed = 0
            while not self._stopping.is_set():
                message = subscription.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    confirmed += 1
                    if confirmed == len(self._channels):
                        self._catch_up()
                elif message["type"] == "message":
                    self._hear(message["data"])

    def _catch_up(self) -> None:
        """Cancels may have been broadcast while this listener was away."""
        if requests := self._dispatcher.requests():
            marks = self._client.mget([self._keys.cancelled(request) for request in requests])
            for request, mark in zip(requests, marks, strict=True):
                if mark is not None:
                    self._dispatcher.cancel(request)

    def _hear(self, data: bytes) -> None:
        try:
            message = decode_control(data)
        except msgspec.DecodeError as error:
            log.warning("control_unreadable", error=str(error))
            return
        match message:
            case Cancel(request=request):
                self._dispatcher.cancel(request)
            case Resend(request=request, attempt=attempt, from_sequence=sequence):
                self._publisher.resend(request, attempt, sequence)
            case Release(requests=requests):
                self._publisher.release(requests)
