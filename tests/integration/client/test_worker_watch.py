"""Who counts as lost: measured by Redis' clock, and only when Redis is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis.asyncio

from common.client.worker_watch import WorkerWatch
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings

KEYS = Keys()
Beat = Callable[[str, float], Awaitable[None]]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = async_redis(Settings.of(redis_url=redis_url))
    yield client
    await client.aclose()


def _watch(client: redis.asyncio.Redis, **values: float) -> WorkerWatch:
    limits = {"heartbeat_seconds": 0.5, "worker_dead_after": 2.5, "redis_timeout": 0.2, "redis_connect_timeout": 0.1}
    return WorkerWatch(client, KEYS, Settings.of(**{**limits, **values}))


async def _until_lost(watch: WorkerWatch, worker: str) -> None:
    """One look is enough, unless the machine holds it up: then it says nothing."""
    deadline = time.monotonic() + 30
    while not watch.lost(worker):
        assert time.monotonic() < deadline
        await watch.look()
        await asyncio.sleep(0.02)


async def _beat(client: redis.asyncio.Redis, worker: str, ago: float) -> None:
    seconds, micros = await client.time()
    await client.zadd(KEYS.workers, {worker: seconds + micros / 1e6 - ago})


async def test_a_worker_is_lost_by_the_age_of_its_last_beat(client: redis.asyncio.Redis) -> None:
    watch = _watch(client, heartbeat_seconds=10.0, worker_dead_after=40.0)
    for worker, age in (("young", 20.0), ("old", 40.5), ("heard", 60.0)):
        await _beat(client, worker, age)
    watch.heard("heard", time.monotonic())
    await watch.look()
    assert {worker: watch.lost(worker) for worker in ("young", "old", "heard")} == {
        "young": False,
        "old": True,
        "heard": False,
    }
    await _beat(client, "old", 0.0)
    await watch.look()
    assert not watch.lost("old")


async def test_a_worker_that_left_the_registry_is_lost_once_its_last_sign_is_old(client: redis.asyncio.Redis) -> None:
    watch = _watch(client, worker_dead_after=1.5)
    await _beat(client, "w", 0.0)
    await watch.look()
    await client.flushall()
    await watch.look()
    assert not watch.lost("w")
    await _until_lost(watch, "w")


async def test_nobody_is_lost_before_workers_could_come_back_to_redis(client: redis.asyncio.Redis) -> None:
    watch = _watch(client, heartbeat_seconds=0.4, worker_dead_after=0.5)
    await _beat(client, "w", 5.0)
    await _until_lost(watch, "w")
    began = time.monotonic()
    watch.interrupted()
    await _until_lost(watch, "w")
    assert time.monotonic() - began > 0.5 + 0.2 + 0.1


async def test_a_slow_server_says_nothing_about_the_workers(client: redis.asyncio.Redis) -> None:
    watch = _watch(client, heartbeat_seconds=0.1)
    await _beat(client, "w", 5.0)
    await client.client_pause(1000)
    await watch.look()
    assert watch.looks == 1
    assert not watch.lost("w")


async def test_a_server_that_is_away_says_nothing_either(client: redis.asyncio.Redis) -> None:
    watch = _watch(client)
    await _beat(client, "w", 5.0)
    await _until_lost(watch, "w")
    looks = watch.looks
    away = async_redis(Settings.of(redis_url="redis://127.0.0.1:1/0"))
    watch._ages = away.register_script("")
    await watch.look()
    assert watch.looks == looks
    assert not watch.lost("w")
    await away.aclose()
