"""Jobs of dead workers without a worker that lives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis

from common.celery_message import celery_message
from common.keys import Keys
from common.parameters import GenerationParameters
from common.reaper import RESTART_GRACE_SECONDS
from common.redis_clients import async_redis
from common.wire import Job
from tests.integration.client.fake_worker import MODEL, settings_for, until
from web.reaping import Reaping

KEYS = Keys("reaping")  # Web nodes of other tests reap too.
QUEUE = KEYS.queue(MODEL, "interactive")
DEAD_AFTER = 2.0
WORKER = "w"


@asynccontextmanager
async def reaping(redis_url: str) -> AsyncIterator[None]:
    settings = settings_for(
        redis_url,
        worker_dead_after=DEAD_AFTER,
        heartbeat_seconds=0.4,
        redis_timeout=3 * DEAD_AFTER,  # its commands outlast the pause
        key_prefix=KEYS.prefix,
    )
    client = async_redis(settings)
    reaper = Reaping(client, settings)
    await reaper.start()
    try:
        yield
    finally:
        await reaper.stop()
        await client.aclose()


def hold(client: redis.Redis) -> None:
    """A job as a worker holds it that has not begun."""
    job = Job(
        id="r", model=MODEL, prompt_ids=[1], parameters=GenerationParameters(max_new_tokens=3, seed=0), submitted_at=0.0
    )
    message = celery_message(job, QUEUE)
    tag = json.loads(message)["properties"]["delivery_tag"]
    client.hset(KEYS.unacked(WORKER), tag, b"[" + message + b',"","' + QUEUE.encode() + b'"]')
    client.zadd(KEYS.unacked_index(WORKER), {tag: 1000})


def beat(client: redis.Redis) -> None:
    seconds, micros = client.time()
    client.zadd(KEYS.workers, {WORKER: seconds + micros / 1e6})


def old_enough(client: redis.Redis) -> bool:
    information: dict[str, int] = client.info("server")
    return information["uptime_in_seconds"] >= RESTART_GRACE_SECONDS


async def test_go_back_to_the_queue(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        await until(lambda: old_enough(client), 30)
        hold(client)
        client.zadd(KEYS.workers, {WORKER: client.time()[0] - 60})
        async with reaping(redis_url):
            await until(lambda: client.llen(QUEUE) == 1)
        assert not client.exists(KEYS.unacked(WORKER), KEYS.workers)


async def test_stay_where_they_are_when_it_is_redis_that_was_away(redis_url: str) -> None:
    """Nobody's heartbeat arrives while Redis stands still; whoever looks first must not find everybody dead."""
    with redis.Redis.from_url(redis_url) as client:
        await until(lambda: old_enough(client), 30)
        hold(client)
        beat(client)
        async with reaping(redis_url):
            beats = 0
            async with asyncio.timeout(60):
                while beats < 1.5 * DEAD_AFTER / 0.1:  # long enough for the reaper to trust Redis
                    await asyncio.to_thread(beat, client)
                    beats += 1
                    await asyncio.sleep(0.1)
                client.client_pause(int(1250 * DEAD_AFTER))
                # The worker is back a moment after Redis; the reaper, whose command waited there, comes first.
                await asyncio.to_thread(client.ping)
                await asyncio.sleep(0.2)
                for _ in range(5):
                    await asyncio.to_thread(beat, client)
                    await asyncio.sleep(0.1)
            assert client.hlen(KEYS.unacked(WORKER)) == 1
