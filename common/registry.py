"""Which workers are alive, as they say themselves with every heartbeat.

A worker is alive when its last heartbeat is younger than `dead_after`, measured on the Redis server's clock: clocks of
web nodes and workers need not agree. One round trip.
"""

from __future__ import annotations

from typing import cast

import msgspec
import redis
import redis.asyncio

from common.keys import Keys
from common.wire import WIRE_VERSION, WorkerRecord, decode_worker_record

_ALIVE = """
local now = redis.call('TIME')
local oldest = now[1] + now[2] / 1e6 - tonumber(ARGV[1])
local records = {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], oldest, '+inf')) do
  local record = redis.call('GET', ARGV[2] .. worker)
  if record then records[#records + 1] = record end
end
return records
"""


async def live_workers(client: redis.asyncio.Redis, keys: Keys, dead_after: float) -> list[WorkerRecord]:
    """Records of the workers heard of in the last `dead_after` seconds, by id.

    Raises:
        redis.exceptions.RedisError: Redis is away or slow.
    """
    reply = await client.eval(_ALIVE, 1, keys.workers, str(dead_after), keys.worker(""))
    return _records(cast("list[bytes | str]", reply))


def live_workers_sync(client: redis.Redis, keys: Keys, dead_after: float) -> list[WorkerRecord]:
    """As `live_workers`, for code without an event loop."""
    reply = client.eval(_ALIVE, 1, keys.workers, str(dead_after), keys.worker(""))
    return _records(cast("list[bytes | str]", reply))


def _records(reply: list[bytes | str]) -> list[WorkerRecord]:
    records = []
    for raw in reply:
        try:
            record = decode_worker_record(raw)
        except msgspec.DecodeError:
            # A worker of another version: not one this process can talk to.
            continue
        if record.version == WIRE_VERSION:
            records.append(record)
    return sorted(records, key=lambda record: record.id)
