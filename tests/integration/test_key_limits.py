"""Limits of API keys over several processes' worth of instances on one real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.api_keys import ApiKey
from common.errors import KeyLimited, ServiceUnavailable
from common.key_limits import KeyLimits, Share
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis

KEYS = Keys()
PROCESSES = [f"{i:x}" * 4 for i in range(4)]


def key(name: str = "a", requests: int | None = None, tokens: int | None = None) -> ApiKey:
    return ApiKey(name, name.encode(), requests, tokens)


def _settings(url: str, **values: Any) -> Settings:
    return Settings.of(redis_url=url, **values)


@asynccontextmanager
async def instances(settings: Settings, count: int) -> AsyncIterator[list[KeyLimits]]:
    """`count` web processes' limits, each with its own connections."""
    clients = [async_redis(settings) for _ in range(count)]
    limits = [KeyLimits(client, KEYS, settings, PROCESSES[i]) for i, client in enumerate(clients)]
    for one in limits:
        await one.start()
    try:
        yield limits
    finally:
        for one in limits:
            await one.close()
        for client in clients:
            await client.aclose()


async def _stored(settings: Settings, name: str = "a") -> dict[str, list[float]]:
    """What Redis believes: numbers of each process but their leases, and the level of the bucket."""
    async with async_redis(settings) as client:
        fields = await client.hgetall(KEYS.key_limits(name))
    found = {bytes(field).decode(): bytes(value).split() for field, value in fields.items()}  # type: ignore[arg-type]
    return {field: [float(word) for word in words[:-1]] for field, words in found.items()}


async def _until_stored(settings: Settings, expected: dict[str, list[float]], seconds: float = 20.0) -> None:
    """Of the processes, that is without the bucket."""
    deadline = time.monotonic() + seconds
    while True:
        stored = await _stored(settings)
        stored.pop("used", None)
        if stored == expected:
            return
        assert time.monotonic() < deadline, stored
        await asyncio.sleep(0.01)


async def _try(limits: KeyLimits, wanted: ApiKey) -> Share | KeyLimited:
    try:
        return await limits.enter(wanted)
    except KeyLimited as error:
        return error


async def test_requests_in_flight_are_exact_over_three_processes_at_once(redis_url: str) -> None:
    settings, limited = _settings(redis_url), key(requests=16)
    async with instances(settings, 3) as limits:
        answers = await asyncio.gather(*(_try(limits[i % 3], limited) for i in range(60)))
        shares = [answer for answer in answers if isinstance(answer, Share)]
        refused = [answer for answer in answers if isinstance(answer, KeyLimited)]
        assert (len(shares), len(refused)) == (16, 44)
        assert all(error.retry_after is not None and 1 <= error.retry_after <= 60 for error in refused)
        assert "requests in flight" in refused[0].message
        assert isinstance(await _try(limits[0], key("b", requests=1)), Share)
        usage = limits[0].usage(limited)
        assert (usage.requests_limit, usage.requests_left, usage.tokens_limit) == (16, 0, None)
        for share in shares:
            share.release()
            share.release()
        await _until_stored(settings, {})
        assert isinstance(await _try(limits[1], limited), Share)


async def test_tokens_are_reserved_settled_and_come_back(redis_url: str) -> None:
    settings, limited = _settings(redis_url), key(tokens=60_000)
    async with instances(settings, 2) as (one, other):
        first = await one.enter(limited)
        await first.reserve(50_000)
        assert first.usage.tokens_left == 10_000
        second = await other.enter(limited)
        with pytest.raises(KeyLimited, match=r"limit 60000, left 10000, asked for 20000") as caught:
            await second.reserve(20_000)
        assert caught.value.retry_after == 10
        await second.reserve(10_000)
        first.release(30_000)
        await _until_stored(settings, {PROCESSES[1]: [0, 10_000]})
        (level,) = (await _stored(settings))["used"]
        assert 26_000 < level <= 30_000  # it drains, should somebody write it anew
        third = await one.enter(limited)
        with pytest.raises(KeyLimited):
            await third.reserve(25_000)
        await third.reserve(20_000)
        assert 0 <= (third.usage.tokens_left or 0) < 5_000
        assert third.usage.tokens_reset > 50
        # What is used up drains by a thousand a second.
        deadline = time.monotonic() + 30
        while True:
            try:
                await (await one.enter(limited)).reserve(1_500)
                break
            except KeyLimited:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        third.release()
        second.release()


async def test_more_than_was_reserved_may_have_been_used(redis_url: str) -> None:
    settings, limited = _settings(redis_url), key(tokens=1000)
    async with instances(settings, 1) as (limits,):
        share = await limits.enter(limited)
        await share.reserve(1000)
        share.release(5000)
        await _until_stored(settings, {})
        with pytest.raises(KeyLimited) as caught:
            await (await limits.enter(limited)).reserve(1)
        assert caught.value.retry_after == 60
        assert limits.usage(limited).tokens_left == 0
        async with async_redis(settings) as client:
            assert 200_000 < await client.pttl(KEYS.key_limits("a")) <= 300_000


async def test_the_limits_hold_at_every_moment_under_churn(redis_url: str) -> None:
    settings, limited = _settings(redis_url), key(requests=6, tokens=100_000)
    noise = random.Random(5)
    held = tokens = peak = peak_tokens = granted = 0

    async def visitor(limits: KeyLimits) -> None:
        nonlocal held, tokens, peak, peak_tokens, granted
        for _ in range(12):
            answer = await _try(limits, limited)
            await asyncio.sleep(noise.random() * 0.002)
            if isinstance(answer, Share):
                held += 1
                peak = max(peak, held)
                wanted = noise.randrange(30_000)
                try:
                    await answer.reserve(wanted)
                    granted += 1
                    tokens += wanted
                    peak_tokens = max(peak_tokens, tokens)
                    await asyncio.sleep(noise.random() * 0.002)
                    tokens -= wanted
                except KeyLimited:
                    pass
                held -= 1
                answer.release()

    async with instances(settings, 3) as limits:
        await asyncio.gather(*(visitor(limits[i % 3]) for i in range(30)))
        assert peak <= 6
        assert 50_000 < peak_tokens <= 100_000
        assert granted > 20
        await _until_stored(settings, {})
        assert all(one.held == {"a": (0, 0)} for one in limits)


async def test_a_caller_that_leaves_while_redis_is_asked_holds_nothing(redis_url: str) -> None:
    settings, limited = _settings(redis_url, lease_seconds=60), key(requests=8, tokens=100)
    async with instances(settings, 1) as (limits,):
        for _ in range(20):
            task = asyncio.create_task(limits.enter(limited))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await _until_stored(settings, {})
        for _ in range(20):
            share = await limits.enter(limited)
            reserving = asyncio.create_task(share.reserve(10))
            for _ in range(3):
                await asyncio.sleep(0)
            reserving.cancel()
            await asyncio.gather(reserving, return_exceptions=True)
            share.release()
            await _until_stored(settings, {})
        assert limits.held == {"a": (0, 0)}


async def test_a_dead_process_frees_what_it_held_and_a_living_one_keeps_it(redis_url: str) -> None:
    settings, limited = _settings(redis_url, lease_seconds=1.2), key(requests=2, tokens=100)
    async with instances(settings, 2) as (dies, lives):
        await (await dies.enter(limited)).reserve(90)
        mine = await lives.enter(limited)
        assert isinstance(await _try(lives, limited), KeyLimited)
        assert dies._renewal is not None
        dies._renewal.cancel()
        await _until_stored(settings, {PROCESSES[1]: [1, 0]})
        await mine.reserve(90)
        assert isinstance(await _try(lives, limited), Share)
        async with async_redis(settings) as client:
            await client.flushall()
        await _until_stored(settings, {PROCESSES[1]: [2, 90]})


async def test_limits_that_change_hold_from_the_next_request_on(redis_url: str) -> None:
    async with instances(_settings(redis_url), 1) as (limits,):
        assert isinstance(await _try(limits, key(requests=1)), Share)
        assert isinstance(await _try(limits, key(requests=1)), KeyLimited)
        assert isinstance(await _try(limits, key(requests=2)), Share)


async def test_without_redis_callers_are_refused_in_time_and_served_again_after(tmp_path: Path) -> None:
    limited = key(requests=2, tokens=100)
    with EmbeddedRedis(tmp_path) as server:
        settings = _settings(server.url, redis_timeout=1.0)
        async with instances(settings, 1) as (limits,):
            share = await limits.enter(limited)
            for interrupt, mend in ((server.freeze, server.thaw), (server.kill, server.start)):
                interrupt()
                started = time.monotonic()
                with pytest.raises(ServiceUnavailable):
                    await limits.enter(limited)
                with pytest.raises(ServiceUnavailable):
                    await share.reserve(10)
                assert time.monotonic() - started < 15
                mend()
                await _until_stored(settings, {PROCESSES[0]: [1, 0]})
                other = await limits.enter(limited)
                assert isinstance(await _try(limits, limited), KeyLimited)
                other.release()
            share.release()
            await _until_stored(settings, {})
