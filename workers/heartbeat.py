"""Says that this worker lives, and looks after those that no longer do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import redis
import structlog

from common.keys import WORKER_RECORD_SECONDS, Keys
from common.reaper import reap
from common.redis_clients import sync_redis
from common.settings import Settings
from common.wire import WorkerRecord, encode_json

log = structlog.get_logger()

REAP_SECONDS = 0.5
"""Longest time between two looks for dead workers."""

_BEAT = """#!lua flags=allow-oom
-- Returns 0 when the record was gone: a reaper took this worker for dead, or Redis has lost its data.
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] + now[2] / 1e6, ARGV[1])
local known = redis.call('EXISTS', KEYS[2])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return known
"""


class Heartbeat:
    """A thread with a connection of its own: neither a busy engine nor a blocked event loop makes it miss a beat.

    `returned` is called with a client, on this thread, when others may have taken this worker for dead meanwhile. It
    reaps only while its own beats arrive on time: after Redis was away, everybody's heartbeats are late.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        record: Callable[[], WorkerRecord],
        returned: Callable[[redis.Redis], None],
    ) -> None:
        self._settings = settings
        self._keys = Keys(settings.key_prefix)
        self._worker = worker
        self._record = record
        self._returned = returned
        self._client = sync_redis(settings)
        self._beat_at: float | None = None
        """When the last beat arrived; None before the first one."""
        self._away = False
        """Whether this worker has not looked yet at what happened while it could not be heard of."""
        self._punctual_since = 0.0
        self._now = threading.Event()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """The state has changed: do not wait for the next beat."""
        self._now.set()

    def beat(self) -> None:
        """Write the record now, on the caller's thread.

        Raises:
            redis.RedisError: Redis is away.
        """
        self._write()

    def stop(self) -> None:
        """End the thread and leave the registry, if Redis answers."""
        self._stopping = True
        self._now.set()
        self._thread.join(2 * self._settings.redis_timeout + 2)
        try:
            pipeline = self._client.pipeline()
            pipeline.zrem(self._keys.workers, self._worker)
            pipeline.delete(self._keys.worker(self._worker))
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("registry_not_left", error=type(error).__name__)
        self._client.close()

    def _run(self) -> None:
        beat_at = 0.0
        while not self._stopping:
            try:
                if self._now.is_set() or time.monotonic() >= beat_at:
                    self._now.clear()
                    beat_at = time.monotonic() + self._settings.heartbeat_seconds
                    self._beat_on_time()
                if time.monotonic() - self._punctual_since >= self._settings.worker_dead_after:
                    reap(self._client, self._settings)
                self._failing = False
            except redis.RedisError as error:
                if not self._failing:
                    log.warning("heartbeat_failed", error=type(error).__name__)
                self._failing = True
            except Exception:
                # The boundary of this thread: without it the worker would be taken for dead.
                log.exception("heartbeat_fault")
            self._now.wait(min(REAP_SECONDS, max(beat_at - time.monotonic(), 0.0)))

    def _beat_on_time(self) -> None:
        known = self._write()
        settings, now = self._settings, time.monotonic()
        if self._beat_at is None:
            self._punctual_since = now
        else:
            pause = now - self._beat_at
            if pause > (settings.heartbeat_seconds + settings.worker_dead_after) / 2:
                self._punctual_since = now
            self._away = self._away or pause > settings.worker_dead_after or not known
        self._beat_at = now
        if self._away:
            self._returned(self._client)
            self._away = False

    def _write(self) -> bool:
        record = encode_json(self._record())
        names = (self._keys.workers, self._keys.worker(self._worker))
        return bool(self._client.eval(_BEAT, 2, *names, self._worker, record, WORKER_RECORD_SECONDS))
