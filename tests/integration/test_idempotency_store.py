"""What Redis knows of idempotent calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from common.idempotency import LARGEST_ANSWER, CallStore, OneCall
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import WIRE_VERSION, KeptAnswer, encode_msgpack

KEYS = Keys()
ONE = OneCall("digest", "request", "one")
OTHER = OneCall("digest", "request", "other")
ANSWER = KeptAnswer(WIRE_VERSION, {"x-a": "b"}, b"{}")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with async_redis(Settings.of(redis_url=redis_url)) as client:
        yield client


@pytest.fixture
def store(client: redis.asyncio.Redis, redis_url: str) -> CallStore:
    return CallStore(client, KEYS, Settings.of(redis_url=redis_url, lease_seconds=30, idempotency_seconds=90))


async def left(client: redis.asyncio.Redis) -> int:
    return int(await client.pttl(KEYS.idempotency("digest")))


async def test_one_owner_at_a_time_and_an_answer_for_all(store: CallStore, client: redis.asyncio.Redis) -> None:
    assert await store.claim(ONE) == "own"
    assert await store.claim(ONE) == "own"
    assert not await store.renew(ONE)
    assert await store.claim(OTHER) == "running"
    assert await store.renew(ONE)
    assert await store.claim(OneCall("digest", "another request", "x")) == "other"
    assert await store.claim(OneCall("another digest", "another request", "x")) == "own"
    assert 20_000 < await left(client) <= 30_000
    await store.keep(ONE, ANSWER)
    assert await store.claim(OTHER) == ANSWER == await store.claim(ONE)
    assert await store.claim(OneCall("digest", "another request", "x")) == "other"
    # A renewal that comes late takes nothing away.
    assert not await store.renew(ONE)
    assert 80_000 < await left(client) <= 90_000


async def test_who_lost_the_call_changes_nothing(store: CallStore, client: redis.asyncio.Redis) -> None:
    assert await store.claim(ONE) == "own"
    await client.flushall()
    assert await store.claim(OTHER) == "own"
    await store.forget(ONE)
    await store.keep(ONE, ANSWER)
    assert not await store.renew(ONE)
    assert await store.claim(ONE) == "running"
    await store.forget(OTHER)
    assert await store.claim(ONE) == "own"


async def test_a_server_that_forgot_learns_it_again(store: CallStore, client: redis.asyncio.Redis) -> None:
    assert await store.claim(ONE) == "own"
    await client.flushall()
    await store.renew(ONE)
    assert await store.claim(OTHER) == "running"
    await client.flushall()
    await store.keep(ONE, ANSWER)
    assert await store.claim(OTHER) == ANSWER


async def test_large_and_foreign_answers_are_made_anew(store: CallStore, client: redis.asyncio.Redis) -> None:
    assert await store.claim(ONE) == "own"
    await store.keep(ONE, KeptAnswer(WIRE_VERSION, {}, b"x" * LARGEST_ANSWER))
    assert await left(client) == -2
    for words in (b"?", encode_msgpack(KeptAnswer(WIRE_VERSION + 1, {}, b""))):
        await client.hset(KEYS.idempotency("digest"), mapping={"fingerprint": "request", "owner": "x", "answer": words})
        assert await store.claim(ONE) == "own"
        await store.keep(ONE, ANSWER)
        await client.delete(KEYS.idempotency("digest"))
