"""What Redis knows of the requests this worker holds: given up, sent again since, or already returned to the queue."""

from __future__ import annotations

from typing import Any

import redis

from common.keys import Keys
from workers.dispatcher import Dispatcher

_LOOK = """
-- KEYS: per request its mark of cancellation, newest attempt, lost attempts. Replies with these three, as integers.
local marks = {}
for i = 1, #KEYS, 3 do
  marks[i] = redis.call('EXISTS', KEYS[i])
  marks[i + 1] = tonumber(redis.call('GET', KEYS[i + 1]) or 0)
  marks[i + 2] = redis.call('SCARD', KEYS[i + 2])
end
return marks
"""


class Marks:
    """Ends work that nobody waits for, and knows the requests that may be poisonous.

    Submitters first write a mark and then tell the workers, so a look at the marks finds whatever was said while nobody
    here was listening.
    """

    def __init__(self, keys: Keys, worker: str, dispatcher: Dispatcher, *, max_attempts: int) -> None:
        self._keys = keys
        self._max_attempts = max_attempts
        self._worker = worker
        self._dispatcher = dispatcher
        self._look: Any = None

    def look(self, client: redis.Redis, requests: list[str]) -> None:
        """End those of `requests` that were cancelled, or sent again with a higher attempt; one round trip.

        Raises:
            redis.RedisError: Redis is away; nothing was ended.
        """
        if not requests:
            return
        keys = self._keys
        names = [
            name
            for request in requests
            for name in (keys.cancelled(request), keys.attempt(request), keys.attempts(request))
        ]
        if self._look is None:
            self._look = client.register_script(_LOOK)
        marks: list[int] = self._look(keys=names, client=client)
        for request, cancelled, newest, losses in zip(requests, marks[::3], marks[1::3], marks[2::3], strict=True):
            if cancelled:
                self._dispatcher.cancel(request)
            elif newest:
                self._dispatcher.cancel(request, below=newest)
            if losses and losses >= self._max_attempts - 1:
                self._dispatcher.suspect(request)

    def look_again(self, client: redis.Redis) -> None:
        """After this worker could not be heard of for a while: also let go of what a reaper gave to others meanwhile.

        Raises:
            redis.RedisError: Redis is away; look again when it is back.
        """
        self.look(client, self._dispatcher.requests())
        deliveries = self._dispatcher.open_deliveries()
        if not deliveries:
            return
        pipeline = client.pipeline(transaction=False)
        for request, attempt, delivery in deliveries:
            pipeline.hexists(self._keys.unacked(self._worker), delivery.tag)
            pipeline.sismember(self._keys.attempts(request), f"{attempt}:{self._worker}")
        answers = pipeline.execute()
        for open_delivery, ours, lost in zip(deliveries, answers[::2], answers[1::2], strict=True):
            # Gone without a trace of a reaper: Redis lost its data, and this is the only copy there is.
            if lost and not ours:
                self._dispatcher.reaped(open_delivery)
