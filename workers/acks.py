"""Which deliveries of this worker are open, and what Redis has not heard of yet about the others."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import redis

from common.keys import Keys
from common.reaper import hand_back


class Acks:
    """Delivery tags of one worker. A tag is only a field of the worker's unacked hash, so an acknowledgement made while
    Redis is away, or through a channel that is gone, is sent later over whichever connection is alive.

    Usable from any thread.
    """

    def __init__(self, keys: Keys, worker: str) -> None:
        self._keys = keys
        self._worker = worker
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._open: set[str] = set()
        self._unsent: list[str] = []
        self._unreturned: list[str] = []

    def opened(self, tag: str) -> None:
        """A message was delivered here."""
        with self._lock:
            self._open.add(tag)

    def ack(self, tag: str) -> None:
        """The message is done with."""
        with self._lock:
            self._open.discard(tag)
            self._unsent.append(tag)

    def give_back(self, tags: Iterable[str]) -> None:
        """These messages, in the order they came, go back to the head of their queue."""
        with self._lock:
            for tag in tags:
                self._open.discard(tag)
                self._unreturned.append(tag)

    def unknown(self, tags: Iterable[str]) -> list[str]:
        """Those of `tags` that were never delivered: a pull whose reply was lost on the way."""
        with self._lock:
            known = self._open.union(self._unsent, self._unreturned)
        return [tag for tag in tags if tag not in known]

    def flush(self, client: redis.Redis) -> None:
        """Send what is unsent, in one or two round trips; on failure it stays unsent.

        Raises:
            redis.RedisError: Redis is away.
        """
        if not (self._unsent or self._unreturned):
            return
        with self._flushing:
            with self._lock:
                done, returned = self._unsent.copy(), self._unreturned.copy()
            if done:
                pipeline = client.pipeline(transaction=False)
                pipeline.zrem(self._keys.unacked_index(self._worker), *done)
                pipeline.hdel(self._keys.unacked(self._worker), *done)
                pipeline.execute()
                with self._lock:
                    del self._unsent[: len(done)]
            if returned:
                hand_back(client, self._keys, self._worker, returned)
                with self._lock:
                    del self._unreturned[: len(returned)]
