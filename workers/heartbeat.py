"""Says that this worker lives, and looks after those that no longer do."""

from __future__ import annotations

import random
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

REAP_SECONDS = 4.0

_BEAT = """
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] + now[2] / 1e6, ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
"""


class Heartbeat:
    """A thread with a connection of its own: neither a busy engine nor a blocked event loop makes it miss a beat."""

    def __init__(self, settings: Settings, worker: str, record: Callable[[], WorkerRecord]) -> None:
        self._settings = settings
        self._keys = Keys(settings.key_prefix)
        self._worker = worker
        self._record = record
        self._client = sync_redis(settings)
        self._now = threading.Event()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_now(self) -> None:
        """The state has changed: do not wait for the next beat."""
        self._now.set()

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
        reap_at = time.monotonic() + random.uniform(0, REAP_SECONDS)
        while not self._stopping:
            try:
                self._beat()
                if time.monotonic() >= reap_at:
                    reap_at = time.monotonic() + REAP_SECONDS
                    reap(self._client, self._settings)
                self._failing = False
            except redis.RedisError as error:
                if not self._failing:
                    log.warning("heartbeat_failed", error=type(error).__name__)
                self._failing = True
            except Exception:
                # The boundary of this thread: without it the worker would be taken for dead.
                log.exception("heartbeat_fault")
            self._now.wait(self._settings.heartbeat_seconds)
            self._now.clear()

    def _beat(self) -> None:
        record = encode_json(self._record())
        names = (self._keys.workers, self._keys.worker(self._worker))
        self._client.eval(_BEAT, 2, *names, self._worker, record, WORKER_RECORD_SECONDS)
