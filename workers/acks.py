"""Which deliveries of this worker are open, and the acknowledgements Redis has not heard of yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import redis


class Acks:
    """Delivery tags of one worker. A tag is only a field of the worker's unacked hash, so an acknowledgement made while
    Redis is away, or through a channel that is gone, is sent later over whichever connection is alive.

    Usable from any thread.
    """

    def __init__(self, unacked_key: str, index_key: str) -> None:
        self._unacked_key = unacked_key
        self._index_key = index_key
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._unsent: list[str] = []

    def opened(self, tag: str) -> None:
        """A message was delivered here."""
        with self._lock:
            self._open.add(tag)

    def ack(self, tag: str) -> None:
        with self._lock:
            self._open.discard(tag)
            self._unsent.append(tag)

    def forget(self, tags: Iterable[str]) -> None:
        """These were given back to the queue: no longer ours to acknowledge."""
        with self._lock:
            self._open.difference_update(tags)

    def unknown(self, tags: Iterable[str]) -> list[str]:
        """Those of `tags` that were never delivered: a pull whose reply was lost on the way."""
        with self._lock:
            known = self._open.union(self._unsent)
        return [tag for tag in tags if tag not in known]

    def flush(self, client: redis.Redis) -> None:
        """Send what is unsent, in one round trip; on failure it stays unsent.

        Raises:
            redis.RedisError: Redis is away.
        """
        if not self._unsent:
            return
        with self._lock:
            tags = self._unsent.copy()
        pipeline = client.pipeline(transaction=False)
        pipeline.zrem(self._index_key, *tags)
        pipeline.hdel(self._unacked_key, *tags)
        pipeline.execute()
        with self._lock:
            del self._unsent[: len(tags)]
