"""What Redis knows of files, and how they go."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio

from common.batches.objects import BatchObject, BatchRequest, FileObject, new_batch_id, new_file_id
from common.batches.removal import remove_expired_files, remove_file
from common.batches.storage import ObjectMissing, Storage, file_name
from common.batches.store import BatchStore
from common.errors import BadRequest, StorageUnavailable, UnknownFile
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings

KEYS = Keys()
DAY = 86_400


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with async_redis(Settings.of(redis_url=redis_url)) as client:
        yield client


@pytest.fixture
def store(client: redis.asyncio.Redis, redis_url: str) -> BatchStore:
    return BatchStore(client, KEYS, Settings.of(redis_url=redis_url, file_retention=7200))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(Settings.of(batch_storage=str(tmp_path)))


def file(**fields: Any) -> FileObject:
    now = int(time.time())
    made = FileObject(id=new_file_id(), bytes=1, created_at=now, filename="x", purpose="batch")
    return msgspec.structs.replace(made, **fields)


async def kept(store: BatchStore, storage: Storage, tenant: str = "", **fields: Any) -> FileObject:
    """A file with its bytes."""
    made = file(**fields)
    await store.announce_file(tenant, made.id)
    async with storage.writer(file_name(made.id)) as writer:
        await writer.write(b"x")
    return await store.put_file(tenant, made)


async def has_bytes(storage: Storage, file_id: str) -> bool:
    try:
        await storage.size(file_name(file_id))
    except ObjectMissing:
        return False
    return True


async def batch_of(store: BatchStore, input_file: FileObject, tenant: str = "") -> BatchObject:
    now = int(time.time())
    batch = BatchObject(
        id=new_batch_id(),
        endpoint="/v1/completions",
        input_file_id=input_file.id,
        completion_window="24h",
        created_at=now,
        expires_at=now + DAY,
    )
    return await store.create(tenant, batch, BatchRequest())


async def test_every_file_has_an_end(store: BatchStore, client: redis.asyncio.Redis) -> None:
    made = file()
    put = await store.put_file("a", made)
    assert put == msgspec.structs.replace(made, expires_at=made.created_at + 7200)
    assert await store.file("a", made.id) == put
    assert 7200 < await client.ttl(KEYS.file(made.id)) <= 7200 + DAY
    # The list lasts as long as its last file.
    assert 7200 < await client.ttl(KEYS.files("a")) <= 7200 + DAY
    await store.put_file("a", file(expires_at=made.created_at + 9 * DAY))
    assert 9 * DAY < await client.ttl(KEYS.files("a")) <= 10 * DAY
    await store.put_file("a", file(expires_at=made.created_at + 60))
    assert await client.ttl(KEYS.files("a")) > 9 * DAY


async def test_pages(store: BatchStore) -> None:
    made = [await store.put_file("", file(purpose="batch" if n % 3 else "batch_output")) for n in range(7)]
    await store.put_file("other", file())
    page = await store.files("", limit=3)
    assert page.data == made[:3:-1]
    assert (page.first_id, page.last_id, page.has_more) == (made[6].id, made[4].id, True)
    page = await store.files("", limit=10, after=page.last_id)
    assert (page.data, page.has_more) == (made[3::-1], False)
    assert (await store.files("", order="asc", limit=2, after=made[1].id)).data == made[2:4]
    # A filter passes over many, and a page is full all the same.
    page = await store.files("", purpose="batch_output", limit=2)
    assert ([one.id for one in page.data], page.has_more) == ([made[6].id, made[3].id], True)
    page = await store.files("", purpose="batch_output", limit=2, after=page.last_id)
    assert ([one.id for one in page.data], page.has_more) == ([made[0].id], False)
    assert (await store.files("nobody")).data == []


async def test_deleting(store: BatchStore, storage: Storage, client: redis.asyncio.Redis) -> None:
    made = await kept(store, storage, "a")
    with pytest.raises(UnknownFile):
        await remove_file(store, storage, "b", made.id)
    await remove_file(store, storage, "a", made.id)
    assert not await has_bytes(storage, made.id)
    assert await client.keys("*") == []
    with pytest.raises(UnknownFile):
        await remove_file(store, storage, "a", made.id)


async def test_a_file_goes_when_its_time_is_over(store: BatchStore, storage: Storage) -> None:
    now = int(time.time())
    old = await kept(store, storage, "a", created_at=now - 9000, expires_at=now - 1)
    young = await kept(store, storage)
    with pytest.raises(UnknownFile):
        await store.file("a", old.id)
    assert await remove_expired_files(store, storage, time.time()) == 1
    assert not await has_bytes(storage, old.id)
    assert await has_bytes(storage, young.id)
    assert await remove_expired_files(store, storage, time.time()) == 0


async def test_bytes_that_never_became_a_file_go(store: BatchStore, storage: Storage) -> None:
    file_id = new_file_id()
    await store.announce_file("a", file_id)
    async with storage.writer(file_name(file_id)) as writer:
        await writer.write(b"x")
    assert await remove_expired_files(store, storage, time.time() + DAY - 60) == 0
    assert await remove_expired_files(store, storage, time.time() + DAY + 60) == 1
    assert not await has_bytes(storage, file_id)


async def test_bytes_that_could_not_be_removed_go_later(
    store: BatchStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await kept(store, storage)

    async def away(name: str) -> None:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove", away)
        with pytest.raises(StorageUnavailable):
            await remove_file(store, storage, "", made.id)
    with pytest.raises(UnknownFile):
        await store.file("", made.id)
    assert await has_bytes(storage, made.id)
    assert await remove_expired_files(store, storage, time.time()) == 1
    assert not await has_bytes(storage, made.id)


async def test_a_file_in_use_stays(store: BatchStore, storage: Storage, client: redis.asyncio.Redis) -> None:
    now = time.time()
    made = await kept(store, storage, expires_at=int(now) + 100)
    first, second = await batch_of(store, made), await batch_of(store, made)
    with pytest.raises(BadRequest, match="batch_"):
        await remove_file(store, storage, "", made.id)
    # Nor does it go when it expires meanwhile, and it does not keep others from going.
    assert await remove_expired_files(store, storage, now + 200) == 0
    assert await has_bytes(storage, made.id)
    for _ in (first, second):
        with pytest.raises(BadRequest):
            await remove_file(store, storage, "", made.id)
        claim = await store.claim("runner", 60)
        assert claim is not None
        await store.update(claim, status="failed")
    await remove_file(store, storage, "", made.id)
    assert not await has_bytes(storage, made.id)
    assert await client.zcard(KEYS.file_expiry) == 0


async def test_files_in_use_are_looked_at_again_later(store: BatchStore, client: redis.asyncio.Redis) -> None:
    made = await store.put_file("a", file())
    await batch_of(store, made, "a")
    # As if it was due.
    await client.zadd(KEYS.file_expiry, {f"a/{made.id}": 1})
    assert await store.expired_files(time.time(), 10) == [("a", made.id)]
    assert not await store.expire_file("a", made.id)
    assert await store.expired_files(time.time(), 10) == []
    assert await store.expired_files(time.time() + 120, 10) == [("a", made.id)]
