"""The registry tells who is alive, by the server's clock."""

from __future__ import annotations

import redis.asyncio

from common.keys import Keys
from common.registry import live_workers, live_workers_sync
from common.wire import WorkerRecord, encode_json
from tests.integration.workers.support import Submitter


def add(submitter: Submitter, name: str, *, age: float, raw: bytes | None = None, version: int = 1) -> WorkerRecord:
    client, keys = submitter.client, submitter.keys
    record = WorkerRecord(
        version=version, id=name, pid=1, engine_pid=2, host="h", model="m", state="ready", started_at=1.0
    )
    seconds, microseconds = client.time()
    client.zadd(keys.workers, {name: seconds + microseconds / 1e6 - age})
    client.set(keys.worker(name), encode_json(record) if raw is None else raw)
    return record


async def test_lists_the_living(submitter: Submitter, redis_url: str) -> None:
    second = add(submitter, "b", age=1)
    first = add(submitter, "a", age=2)
    add(submitter, "dead", age=11)
    add(submitter, "odd", age=0, raw=b'{"id": 1}')
    add(submitter, "newer", age=0, version=2)
    submitter.client.zadd(submitter.keys.workers, {"no record": 1e12})
    assert live_workers_sync(submitter.client, Keys(), 10) == [first, second]
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await live_workers(client, Keys(), 10) == [first, second]
        assert await live_workers(client, Keys("other"), 10) == []
