"""What Redis knows of batches, and who holds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import redis.asyncio

from common.batches.objects import (
    BatchError,
    BatchErrors,
    BatchObject,
    BatchRequest,
    BatchUsage,
    Counts,
    FileObject,
    Part,
    new_batch_id,
    new_file_id,
)
from common.batches.store import BatchStore, Claim, LeaseLost
from common.batches.transitions import IllegalTransition
from common.errors import BadRequest, UnknownBatch, UnknownFile
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings

KEYS = Keys()
REQUEST = BatchRequest(output_expires_after=7200, weight=2.5, models=["a"])


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with async_redis(Settings.of(redis_url=redis_url)) as client:
        yield client


@pytest.fixture
def store(client: redis.asyncio.Redis, redis_url: str) -> BatchStore:
    return BatchStore(client, KEYS, Settings.of(redis_url=redis_url, batch_retention=3600))


async def input_file(store: BatchStore, tenant: str = "") -> FileObject:
    now = int(time.time())
    file = FileObject(id=new_file_id(), bytes=3, created_at=now, filename="in.jsonl", purpose="batch")
    return await store.put_file(tenant, file)


async def new_batch(store: BatchStore, tenant: str = "", **fields: Any) -> BatchObject:
    now = int(time.time())
    batch = BatchObject(
        id=new_batch_id(),
        endpoint="/v1/chat/completions",
        input_file_id=(await input_file(store, tenant)).id,
        completion_window="24h",
        created_at=now,
        expires_at=now + 86_400,
        metadata={"a": "b"},
    )
    return await store.create(tenant, msgspec.structs.replace(batch, **fields), REQUEST)


async def claimed(store: BatchStore, runner: str = "runner", seconds: float = 60) -> Claim:
    claim = await store.claim(runner, seconds)
    assert claim is not None
    return claim


async def test_a_batch_is_its_owners_alone(store: BatchStore) -> None:
    batch = await new_batch(store, "a")
    assert await store.batch("a", batch.id) == batch
    for tenant in ("", "b"):
        with pytest.raises(UnknownBatch, match=batch.id):
            await store.batch(tenant, batch.id)
        with pytest.raises(UnknownBatch):
            await store.cancel(tenant, batch.id)
        assert (await store.batches(tenant)).data == []


async def test_pages_of_batches(store: BatchStore) -> None:
    ids = [(await new_batch(store)).id for _ in range(5)][::-1]
    page = await store.batches("", limit=2)
    assert ([one.id for one in page.data], page.first_id, page.last_id, page.has_more) == (ids[:2], *ids[:2], True)
    page = await store.batches("", after=page.last_id, limit=2)
    assert ([one.id for one in page.data], page.has_more) == (ids[2:4], True)
    page = await store.batches("", after=page.last_id, limit=2)
    assert ([one.id for one in page.data], page.has_more) == (ids[4:], False)
    page = await store.batches("", after=ids[-1])
    assert (page.data, page.first_id, page.last_id, page.has_more) == ([], None, None, False)


async def test_a_batch_needs_its_file(store: BatchStore) -> None:
    with pytest.raises(UnknownFile, match="file-no"):
        await new_batch(store, input_file_id="file-no")
    assert await store.claim("runner", 60) is None


async def test_callers_have_their_turns(store: BatchStore) -> None:
    made = [await new_batch(store, tenant) for tenant in ("a", "a", "a", "b", "c", "b")]
    order = [(claim.tenant, claim.batch) for claim in [await claimed(store) for _ in made]]
    assert order == [
        ("a", made[0]),
        ("b", made[3]),
        ("c", made[4]),
        ("a", made[1]),
        ("b", made[5]),
        ("a", made[2]),
    ]
    assert await store.claim("runner", 60) is None


async def test_each_is_claimed_once(store: BatchStore) -> None:
    made = {(await new_batch(store, tenant)).id for tenant in ("a", "a", "b", "c", "c")}
    claims = await asyncio.gather(*(store.claim(f"runner-{number}", 60) for number in range(8)))
    found = [claim.batch.id for claim in claims if claim is not None]
    assert len(found) == 5
    assert set(found) == made


async def test_nothing_is_lost_of_what_is_told_at_once(store: BatchStore) -> None:
    batch = await new_batch(store)
    claim = await claimed(store)
    await store.update(claim, status="in_progress")
    parts = [Part(name=f"{number}", kind="output", bytes=1, lines=1) for number in range(8)]
    await asyncio.gather(
        *(store.register_part(claim, part, completed=1, usage=BatchUsage.of(1, 2)) for part in parts),
        store.cancel("", batch.id),
        store.renew(claim),
    )
    now = await store.batch("", batch.id)
    assert (now.status, now.request_counts.completed, now.usage) == ("cancelling", 8, BatchUsage.of(8, 16))
    assert await store.parts(claim) == parts


async def test_lists_forget_batches_that_are_gone(store: BatchStore, client: redis.asyncio.Redis) -> None:
    gone = [await new_batch(store) for _ in range(3)]
    await client.delete(*(KEYS.batch(batch.id) for batch in gone))
    first, second = await new_batch(store), await new_batch(store)
    assert await client.zrange(KEYS.batches(""), 0, -1) == [first.id.encode(), second.id.encode()]


async def test_one_holder_at_a_time(store: BatchStore) -> None:
    batch = await new_batch(store)
    claim = await claimed(store, seconds=0.05)
    assert claim.batch == batch
    assert claim.request == REQUEST
    second = None
    while second is None:
        second = await store.claim("other", 60)
    assert second.batch == batch
    for call in (
        store.renew(claim),
        store.update(claim, status="in_progress"),
        store.register_part(claim, Part(name="x", kind="output", bytes=1, lines=1), completed=1),
    ):
        with pytest.raises(LeaseLost):
            await call
    await store.release(claim)  # the lease of another
    assert await store.claim("third", 60) is None
    assert await store.parts(second) == []
    assert await store.batch("", batch.id) == batch
    await store.renew(second)
    await store.release(second)
    assert (await claimed(store)).batch == batch


async def test_a_lease_that_ran_out_unnoticed_can_be_renewed(store: BatchStore, client: redis.asyncio.Redis) -> None:
    batch = await new_batch(store)
    claim = await claimed(store, seconds=0.01)
    while await client.zcount(KEYS.held_batches, "-inf", time.time() * 1000 - 1) == 0:
        pass
    long = msgspec.structs.replace(claim, seconds=60.0)
    await store.renew(long)
    assert await store.claim("other", 60) is None
    # Put back among those that wait, but not taken by anybody.
    await client.zrem(KEYS.held_batches, f"/{batch.id}")
    await client.zadd(KEYS.waiting_batches(""), {batch.id: 0})
    await client.zadd(KEYS.batch_turns, {"": 1})
    await store.renew(long)
    assert await store.claim("other", 60) is None


async def test_progress_and_end(store: BatchStore, client: redis.asyncio.Redis) -> None:
    batch = await new_batch(store)
    claim = await claimed(store)
    began = await store.update(claim, status="in_progress", request_counts=Counts(total=5), model="m")
    assert began.in_progress_at is not None
    assert abs(began.in_progress_at - time.time()) < 60
    first = Part(name="batches/x/1", kind="output", bytes=10, lines=2)
    second = Part(name="batches/x/2", kind="error", bytes=20, lines=1)
    third = Part(name="batches/x/3", kind="output", bytes=30, lines=2)
    await store.register_part(claim, first, second, completed=2, failed=1, usage=BatchUsage.of(10, 5, cached=4))
    # Once more, as one does who has not heard the answer.
    again = await store.register_part(claim, first, second, completed=2, failed=1, usage=BatchUsage.of(10, 5, cached=4))
    assert again.request_counts == Counts(5, 2, 1)
    now = await store.register_part(claim, third, completed=2, usage=BatchUsage.of(1, 2))
    assert now.request_counts == Counts(5, 4, 1)
    assert now.usage == BatchUsage.of(11, 7, cached=4)
    assert now.usage.total_tokens == 18
    assert await store.current(claim) == now
    assert await store.parts(claim) == [first, second, third]
    await store.update(claim, status="finalizing")
    assert (await store.update(claim, status="finalizing")).status == "finalizing"
    ended = await store.update(claim, status="completed", output_file_id="file-o", error_file_id="file-e")
    assert ended == await store.batch("", batch.id)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("completed", "file-o", "file-e")
    assert None not in (ended.finalizing_at, ended.completed_at)
    # Nothing of it is left but the record, for its time.
    assert 3500 < await client.ttl(KEYS.batch(batch.id)) <= 3600
    assert not await client.exists(KEYS.batch_parts(batch.id), KEYS.held_batches, KEYS.batch_turns)
    with pytest.raises(LeaseLost):
        await store.renew(claim)
    await store.release(claim)
    assert await store.claim("other", 60) is None


async def test_a_bad_file_tells_its_errors(store: BatchStore) -> None:
    batch = await new_batch(store)
    claim = await claimed(store)
    errors = BatchErrors([BatchError("invalid_json_line", "No JSON", line=3), BatchError("empty_file", "Empty", "x")])
    await store.update(claim, status="failed", errors=errors)
    told = msgspec.json.decode(msgspec.json.encode(await store.batch("", batch.id)))
    assert told["status"] == "failed"
    assert told["failed_at"] >= batch.created_at
    assert told["errors"] == {
        "object": "list",
        "data": [
            {"code": "invalid_json_line", "message": "No JSON", "param": None, "line": 3},
            {"code": "empty_file", "message": "Empty", "param": "x", "line": None},
        ],
    }


async def test_cancelling_wins_over_progress(store: BatchStore) -> None:
    batch = await new_batch(store)
    claim = await claimed(store)
    await store.update(claim, status="in_progress")
    cancelled = await store.cancel("", batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    assert await store.cancel("", batch.id) == cancelled
    # What was under way still counts, and its end is another.
    await store.register_part(claim, Part(name="p", kind="output", bytes=1, lines=1), completed=1)
    with pytest.raises(IllegalTransition):
        await store.update(claim, status="finalizing")
    ended = await store.update(claim, status="cancelled")
    assert ended.request_counts.completed == 1
    assert await store.cancel("", batch.id) == ended


async def test_what_has_ended_cannot_be_cancelled(store: BatchStore) -> None:
    batch = await new_batch(store)
    claim = await claimed(store)
    await store.update(claim, status="in_progress")
    await store.update(claim, status="finalizing")
    with pytest.raises(BadRequest, match="'finalizing'"):
        await store.cancel("", batch.id)
    await store.update(claim, status="completed")
    with pytest.raises(BadRequest, match="'completed'"):
        await store.cancel("", batch.id)


async def test_a_batch_that_waits_is_cancelled_by_the_runner_that_comes(store: BatchStore) -> None:
    batch = await new_batch(store)
    await store.cancel("", batch.id)
    claim = await claimed(store)
    assert claim.batch.status == "cancelling"
    assert (await store.update(claim, status="cancelled")).cancelled_at is not None


async def test_a_record_that_is_gone(store: BatchStore, client: redis.asyncio.Redis) -> None:
    batch, other = await new_batch(store), await new_batch(store)
    claim = await claimed(store)
    await client.delete(KEYS.batch(batch.id), KEYS.batch(other.id))
    assert await store.claim("runner", 60) is None
    with pytest.raises(LeaseLost):
        await store.update(claim, status="in_progress")
    with pytest.raises(LeaseLost):
        await store.renew(claim)
    with pytest.raises(UnknownBatch):
        await store.cancel("", batch.id)
    assert (await store.batches("")).data == []
