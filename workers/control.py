"""Hears what submitters want of running requests (cancel, send again, forget), and what operators want of this worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import redis
import structlog

from common.held_jobs import HeldJobs
from common.keys import ANSWERS_SECONDS, Keys
from common.redis_clients import sync_redis
from common.settings import Settings
from common.wire import Cancel, ListJobs, Pause, Release, Resend, decode_control, encode_msgpack
from workers.dispatcher import Dispatcher
from workers.marks import Marks
from workers.publisher import Publisher

log = structlog.get_logger()

RECONNECT_SECONDS = 0.25
LISTEN_SECONDS = 0.5


class ControlListener:
    """A thread with a subscription of its own; it reconnects for as long as the worker lives."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        dispatcher: Dispatcher,
        publisher: Publisher,
        marks: Marks,
        *,
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            changed: the worker's state has changed.
        """
        keys = Keys(settings.key_prefix)
        self._channels = (keys.control, keys.control_of(worker))
        self._client = sync_redis(settings)
        self._worker = worker
        self._model = settings.model_name
        self._changed = changed
        self._silence = settings.redis_timeout
        self._dispatcher = dispatcher
        self._marks = marks
        self._publisher = publisher
        self._stopping = threading.Event()
        self._failing = False
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
                if not self._failing:
                    log.warning("control_reconnects", error=type(error).__name__)
                self._failing = True
            except Exception:
                # The boundary of this thread: without it no request of this worker could be cancelled any more.
                log.exception("control_fault")
            self._stopping.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with self._client.pubsub() as subscription:  # type: ignore[no-untyped-call]
            subscription.subscribe(*self._channels)
            confirmed = 0
            heard_at, asked = time.monotonic(), False
            while not self._stopping.is_set():
                message = subscription.get_message(timeout=LISTEN_SECONDS)
                if message is None:
                    # A link that went dead without a word looks just like a quiet one.
                    if time.monotonic() - heard_at > self._silence:
                        if asked:
                            raise redis.TimeoutError("the server does not answer")
                        subscription.ping()
                        heard_at, asked = time.monotonic(), True
                    continue
                heard_at, asked = time.monotonic(), False
                if message["type"] == "subscribe":
                    confirmed += 1
                    if confirmed == len(self._channels):
                        # What was said while this listener was away.
                        self._marks.look_again(self._client)
                        self._failing = False
                elif message["type"] == "message":
                    self._hear(message["data"])

    def _hear(self, data: bytes) -> None:
        try:
            message = decode_control(data)
        except msgspec.DecodeError as error:
            log.warning("control_unreadable", error=str(error))
            return
        match message:
            case Cancel(request=request, below=below):
                self._dispatcher.cancel(request, below)
            case Resend(request=request, attempt=attempt, from_sequence=sequence):
                self._publisher.resend(request, attempt, sequence)
            case Release(requests=requests):
                self._publisher.release(requests)
            case Pause(paused=paused):
                log.info("worker_paused" if paused else "worker_resumed")
                self._dispatcher.pause(paused)
                self._changed()
            case ListJobs(answers=answers):
                held = HeldJobs(self._worker, self._model, self._dispatcher.jobs())
                with self._client.pipeline() as pipe:
                    pipe.rpush(answers, encode_msgpack(held))
                    pipe.expire(answers, ANSWERS_SECONDS)
                    pipe.execute()
