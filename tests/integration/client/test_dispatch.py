"""Jobs on their way into their queues, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.background import stop_tasks
from common.celery_message import celery_message
from common.client import dispatch
from common.client.dispatch import Dispatcher
from common.errors import Overloaded, ServiceUnavailable
from common.keys import Keys
from common.parameters import GenerationParameters
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import Job
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import settings_for

KEYS = Keys()
QUEUES = [KEYS.queue(model, "interactive") for model in ("dispatched", "dispatched-too")]


def _message(queue: str, prompt: int = 1) -> bytes:
    parameters = GenerationParameters(max_new_tokens=1, seed=0)
    job = Job(id="r", model="m", prompt_ids=[1] * prompt, parameters=parameters, submitted_at=0.0)
    return celery_message(job, queue)


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[tuple[Dispatcher, asyncio.Task[None]]]:
    async with async_redis(settings) as client:
        dispatcher = Dispatcher(client, settings)
        task = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher, task
        finally:
            await stop_tasks([task])
            await client.delete(*QUEUES)


async def test_what_comes_together_is_one_call_and_each_queue_fills_up_by_itself(redis_url: str) -> None:
    settings = settings_for(redis_url, queue_limit=2)
    async with _running(settings) as (dispatcher, _), async_redis(settings) as client:
        calls = (await client.info("commandstats")).get("cmdstat_evalsha", {}).get("calls", 0)
        first, second = QUEUES
        pushes = [dispatcher.push(queue, _message(queue)) for queue in (first, first, second, first, second)]
        results = await asyncio.gather(*(push.done for push in pushes), return_exceptions=True)
        assert results[:3] == [0, 1, 0]
        assert isinstance(results[3], Overloaded)
        assert results[4] == 1
        assert [await client.llen(queue) for queue in QUEUES] == [2, 2]
        # The script may have been new to this server: then the call was made again.
        assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] - calls <= 2


async def test_order_is_kept_over_calls_of_limited_size(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BYTES_PER_CALL", 3000)
    settings = settings_for(redis_url)
    queue = QUEUES[0]
    messages = [_message(queue, prompt) for prompt in (1, 2000, 1, 1, 900, 1)]
    async with _running(settings) as (dispatcher, _), async_redis(settings) as client:
        await asyncio.gather(*(dispatcher.push(queue, message).done for message in messages))
        assert (await client.lrange(queue, 0, -1))[::-1] == messages


async def test_what_nobody_wants_any_more_is_not_sent(redis_url: str) -> None:
    settings = settings_for(redis_url)
    queue = QUEUES[0]
    async with _running(settings) as (dispatcher, _), async_redis(settings) as client:
        unwanted, wanted = dispatcher.push(queue, _message(queue)), dispatcher.push(queue, _message(queue))
        told: list[bool] = []
        unwanted.drop(lambda: told.append(unwanted.done.done() and not dispatcher.idle))
        assert await wanted.done == 0
        assert told == [True]
        assert dispatcher.idle
        assert await unwanted.done is None
        assert await client.llen(queue) == 1


async def test_a_server_that_is_gone_or_stands_still_fails_all_that_wait_and_later_ones_are_sent(
    tmp_path: Path,
) -> None:
    queue = QUEUES[0]
    with EmbeddedRedis(tmp_path) as server:
        settings = settings_for(server.url, redis_timeout=1.5)
        async with _running(settings) as (dispatcher, _):
            assert await dispatcher.push(queue, _message(queue)).done == 0
            server.freeze()
            stuck = [dispatcher.push(queue, _message(queue)) for _ in range(3)]
            results = await asyncio.gather(*(push.done for push in stuck), return_exceptions=True)
            assert [type(result) for result in results] == [ServiceUnavailable] * 3
            server.thaw()
            # Those three may have arrived: whoever sent them cancels them.
            assert await dispatcher.push(queue, _message(queue)).done in (1, 4)


async def test_stopping_tells_everybody(tmp_path: Path) -> None:
    queue = QUEUES[0]
    with EmbeddedRedis(tmp_path) as server:
        settings = settings_for(server.url)
        async with _running(settings) as (dispatcher, task):
            assert await dispatcher.push(queue, _message(queue)).done == 0
            server.freeze()
            under_way = dispatcher.push(queue, _message(queue))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            later = dispatcher.push(queue, _message(queue))
            await stop_tasks([task])
            dispatcher.close()
            with pytest.raises(ServiceUnavailable):
                await under_way.done
            assert await later.done is None
            server.thaw()
