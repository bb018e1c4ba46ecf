"""The client while Redis dies, freezes and comes back. These tests have servers of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.client import GenerationClient
from common.errors import IncompleteGeneration, ServiceUnavailable
from common.wire import Job, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import (
    FakeWorker,
    accept_and_hang,
    answer_all,
    expected_text,
    finish,
    parameters,
    read_all,
    running,
    settings_for,
    text_of,
    token,
    until,
)

LONGEST_BLOCK = 0.5
"""Seconds; whatever waits for Redis on the loop itself waits for `REDIS_TIMEOUT`."""
REDIS_TIMEOUT = 1.5


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server


@asynccontextmanager
async def unblocked_loop() -> AsyncIterator[None]:
    """Fails when something kept the event loop for longer than `LONGEST_BLOCK`, by its CPU time or its waiting.

    What kept a thread beside it, too, was the machine or the garbage collector.
    """
    worst = pause_beside = 0.0
    beat_beside = time.monotonic()
    over = threading.Event()

    def stand_by() -> None:
        nonlocal pause_beside, beat_beside
        while not over.wait(0.005):
            now = time.monotonic()
            pause_beside = max(pause_beside, now - beat_beside)
            beat_beside = now

    async def watch() -> None:
        nonlocal worst, pause_beside
        while True:
            pause_beside = 0.0
            before = time.monotonic()
            await asyncio.sleep(0.005)
            now = time.monotonic()
            worst = max(worst, now - before - max(pause_beside, now - beat_beside))

    thread = threading.Thread(target=stand_by)
    thread.start()
    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        over.set()
        thread.join()
    assert worst < LONGEST_BLOCK


async def off_loop(action: object) -> None:
    assert callable(action)
    await asyncio.to_thread(action)


async def in_two_halves(worker: FakeWorker, job: Job) -> None:
    """Accepts and sends half of the tokens; the rest once `go` is set."""
    await worker.accept(job)
    for index in range(5):
        await worker.emit(job, Tokens(index, [token(index)]))
    await worker.go.wait()
    for index in range(5, 10):
        await worker.emit(job, Tokens(index, [token(index)], finish(10) if index == 9 else None))


async def read_first_half(client: GenerationClient, half_read: asyncio.Event) -> str:
    text = ""
    async with client.generate(client.new_job([1], parameters(10))) as stream:
        async for step in stream:
            text += text_of(step.tokens)
            if len(stream.generated_ids) == 5:
                half_read.set()
    return text


async def test_a_stream_survives_a_restart(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url), in_two_halves) as (client, worker):
        half_read = asyncio.Event()
        reader = asyncio.create_task(read_first_half(client, half_read))
        await asyncio.wait_for(half_read.wait(), 30)
        async with unblocked_loop():
            await off_loop(own_redis.kill)
            await until(lambda: not client.connected)
            worker.go.set()
            await off_loop(own_redis.start)
            assert await asyncio.wait_for(reader, 60) == expected_text(10)
        assert await read_all(client, 10) == expected_text(10)


async def test_h25_a_silent_subscription_is_not_taken_for_a_dead_one(redis_url: str) -> None:
    """Well longer than a command may take."""
    async with running(settings_for(redis_url, redis_timeout=1.0), in_two_halves) as (client, _):
        began, subscribed = time.monotonic(), client._relay.changed_at
        while time.monotonic() - began < 2.5:
            assert client.connected
            await asyncio.sleep(0.05)
        assert client._relay.changed_at == subscribed
        assert await client.redis.ping()


async def test_frames_published_while_the_subscription_was_down_are_asked_for(own_redis: EmbeddedRedis) -> None:
    async def lossy(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        for index in range(5):
            await worker.emit(job, Tokens(index, [token(index)]))
        await worker.go.wait()
        for index in range(5, 10):
            await worker.emit(job, Tokens(index, [token(index)], finish(10) if index == 9 else None), lose=True)

    async with running(settings_for(own_redis.url), lossy) as (client, worker):
        half_read = asyncio.Event()
        reader = asyncio.create_task(read_first_half(client, half_read))
        await asyncio.wait_for(half_read.wait(), 30)
        worker.go.set()
        await off_loop(own_redis.kill)
        await off_loop(own_redis.start)
        assert await asyncio.wait_for(reader, 60) == expected_text(10)
        assert worker.resends[0].from_sequence == 5


async def test_an_acceptance_lost_with_the_subscription_is_asked_for(own_redis: EmbeddedRedis) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.emit(job, Tokens(0, [token(0)], finish(1)), lose=True)

    async with running(settings_for(own_redis.url), behaviour) as (client, worker):
        reader = asyncio.create_task(read_all(client, 1))
        await until(lambda: bool(worker.frames))
        assert worker.resends == []
        await off_loop(own_redis.kill)
        await off_loop(own_redis.start)
        assert await asyncio.wait_for(reader, 60) == expected_text(1)


async def test_a_killed_subscription_comes_back(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url), in_two_halves) as (client, worker):
        half_read = asyncio.Event()
        reader = asyncio.create_task(read_first_half(client, half_read))
        await asyncio.wait_for(half_read.wait(), 30)
        await worker.redis.client_kill_filter(_type="pubsub")
        worker.go.set()
        assert await asyncio.wait_for(reader, 60) == expected_text(10)


async def test_a_frozen_server_is_noticed_and_the_stream_goes_on_after_it(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url, redis_timeout=REDIS_TIMEOUT), in_two_halves) as (client, worker):
        half_read = asyncio.Event()
        reader = asyncio.create_task(read_first_half(client, half_read))
        await asyncio.wait_for(half_read.wait(), 30)
        async with unblocked_loop():
            own_redis.freeze()
            started = time.monotonic()
            with pytest.raises(ServiceUnavailable):
                await read_all(client)
            assert time.monotonic() - started < 10  # a client of Redis by default waits 25 s
            await until(lambda: not client.connected)
            own_redis.thaw()
            worker.go.set()
            assert await asyncio.wait_for(reader, 60) == expected_text(10)


async def test_a_push_whose_answer_was_lost_is_cancelled(own_redis: EmbeddedRedis) -> None:
    settings = settings_for(own_redis.url, redis_timeout=REDIS_TIMEOUT)
    async with running(settings, in_two_halves) as (client, worker):
        worker.taking = False
        # A push before, so that the next one finds its connection open and is read by the server once it thaws.
        async with client.generate(client.new_job([1], parameters())):
            pass
        await until(lambda: client.idle)
        own_redis.freeze()
        job = client.new_job([1], parameters(10))
        with pytest.raises(ServiceUnavailable):
            async with client.generate(job):
                pass
        own_redis.thaw()
        await until(lambda: client.idle)
        worker.taking = True
        worker.go.set()
        await until(lambda: client.connected)
        assert await read_all(client, 10) == expected_text(10)
        assert job.id not in worker.jobs


async def test_a_cancel_waits_for_redis_to_come_back(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url), in_two_halves) as (client, worker):
        stream = await client.generate(client.new_job([1], parameters(10))).__aenter__()
        await until(lambda: stream.worker is not None)
        await off_loop(own_redis.kill)
        stream.close()
        assert client.open_streams == 0
        assert not client.idle
        await off_loop(own_redis.start)
        await until(lambda: client.idle)
        assert await worker.redis.exists(worker.keys.cancelled(stream.job.id))


async def test_redis_that_stays_away_ends_a_stream_at_the_stall_limit(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url, stall_timeout=2.0), accept_and_hang) as (client, _):
        async with client.generate(client.new_job([1], parameters())) as stream:
            await until(lambda: stream.worker is not None)
            await off_loop(own_redis.kill)
            with pytest.raises(IncompleteGeneration, match="away"):
                await asyncio.wait_for(anext(stream), 30)
        await off_loop(own_redis.start)


async def test_a_server_that_forgot_the_heartbeats_does_not_end_streams(own_redis: EmbeddedRedis) -> None:
    settings = settings_for(own_redis.url, worker_dead_after=3.0)
    async with running(settings, in_two_halves) as (client, worker):
        half_read = asyncio.Event()
        reader = asyncio.create_task(read_first_half(client, half_read))
        await asyncio.wait_for(half_read.wait(), 30)
        worker.beating = False
        await off_loop(own_redis.kill)
        await off_loop(own_redis.start)
        await until(lambda: client.connected)
        looks = client._watch.looks
        await until(lambda: client._watch.looks >= looks + 2)
        assert not reader.done()
        worker.beating = True
        worker.go.set()
        assert await asyncio.wait_for(reader, 60) == expected_text(10)


async def test_a_client_started_without_redis_serves_once_it_is_there(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    server.start()
    server.kill()
    settings = settings_for(server.url, redis_timeout=REDIS_TIMEOUT)
    client = GenerationClient(settings)
    await client.start()
    assert not client.connected
    with pytest.raises(ServiceUnavailable):
        await read_all(client)
    server.start()
    worker = FakeWorker(settings, in_two_halves)
    worker.go.set()
    await worker.start()
    await until(lambda: client.connected)
    assert await read_all(client, 10) == expected_text(10)
    await client.close()
    await worker.stop()
    server.stop()


async def test_the_first_requests_after_a_restart_are_served(own_redis: EmbeddedRedis) -> None:
    async with running(settings_for(own_redis.url), answer_all) as (client, _):
        # As many connections as there may be.
        assert set(await asyncio.gather(*(read_all(client) for _ in range(50)))) == {expected_text(5)}
        await off_loop(own_redis.kill)
        await until(lambda: not client.connected)
        await off_loop(own_redis.start)
        await until(lambda: client.connected)
        assert set(await asyncio.gather(*(read_all(client) for _ in range(50)))) == {expected_text(5)}
