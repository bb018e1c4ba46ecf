"""Admission over several processes' worth of instances on one real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.admission import Admission, Permit
from common.celery_message import celery_message
from common.client.dispatch import Dispatcher
from common.errors import Overloaded, ServiceUnavailable
from common.keys import Keys
from common.parameters import GenerationParameters
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import Job
from ops.embedded_redis import EmbeddedRedis

KEYS = Keys()


def _settings(url: str, **values: Any) -> Settings:
    return Settings.of(redis_url=url, **values)


@asynccontextmanager
async def instances(settings: Settings, count: int) -> AsyncIterator[list[Admission]]:
    """`count` web processes' admissions, each with its own connections."""
    clients = [async_redis(settings) for _ in range(count)]
    admissions = [Admission(client, KEYS, settings, f"process-{i}") for i, client in enumerate(clients)]
    for admission in admissions:
        await admission.start()
    try:
        yield admissions
    finally:
        for admission in admissions:
            await admission.close()
        for client in clients:
            await client.aclose()


async def _counted(settings: Settings) -> dict[str, int]:
    """What Redis believes."""
    async with async_redis(settings) as client:
        counts = await client.hgetall(KEYS.admission)
        return {key.decode() if isinstance(key, bytes) else key: int(value) for key, value in counts.items()}


async def _until_counted(settings: Settings, expected: dict[str, int], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while (counts := await _counted(settings)) != expected:
        assert time.monotonic() < deadline, counts
        await asyncio.sleep(0.01)


async def _try(admission: Admission, sequences: int = 1) -> Permit | Overloaded:
    try:
        return await admission.acquire(sequences)
    except Overloaded as error:
        return error


async def test_the_limit_is_exact_over_three_processes_at_once(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=64)
    async with instances(settings, 3) as admissions:
        answers = await asyncio.gather(*(_try(admissions[i % 3]) for i in range(200)))
        permits = [answer for answer in answers if isinstance(answer, Permit)]
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert (len(permits), len(refused)) == (64, 136)
        assert sum(admission.held for admission in admissions) == 64 == sum((await _counted(settings)).values())
        assert all(error.retry_after is not None and 1 <= error.retry_after <= 60 for error in refused)
        assert refused[0].message == "Model is overloaded"
        for permit in permits:
            permit.release()
            permit.release()
        await _until_counted(settings, {})
        assert [admission.held for admission in admissions] == [0, 0, 0]
        assert isinstance(await _try(admissions[0], 64), Permit)
        assert isinstance(await _try(admissions[1]), Overloaded)


async def test_permits_of_several_sequences_are_all_or_none(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=5)
    async with instances(settings, 2) as (one, other):
        with await one.acquire(3):
            assert isinstance(await _try(other, 3), Overloaded)
            with await other.acquire(2):
                assert isinstance(await _try(one), Overloaded)
        await _until_counted(settings, {})
        assert isinstance(await _try(one, 6), Overloaded)
        with pytest.raises(ValueError, match="at least 1"):
            await one.acquire(0)


async def test_the_limit_holds_at_every_moment_under_churn(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=10)
    noise = random.Random(3)
    held = peak = granted = 0

    async def visitor(admission: Admission) -> None:
        nonlocal held, peak, granted
        for _ in range(20):
            answer = await _try(admission)
            if isinstance(answer, Permit):
                granted += 1
                held += 1
                peak = max(peak, held)
                await asyncio.sleep(noise.random() * 0.003)
                held -= 1
                answer.release()
            else:
                await asyncio.sleep(noise.random() * 0.003)

    async with instances(settings, 3) as admissions:
        await asyncio.gather(*(visitor(admissions[i % 3]) for i in range(45)))
        assert peak == 10
        assert granted > 100
        await _until_counted(settings, {})


async def test_a_caller_that_leaves_while_redis_is_asked_keeps_no_permit(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=8, lease_seconds=60)
    async with instances(settings, 1) as (admission,):
        for _ in range(20):
            task = asyncio.create_task(admission.acquire())
            for _ in range(3):
                await asyncio.sleep(0)
            assert not admission._waiting
            assert not task.done()
            task.cancel()
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
            await _until_counted(settings, {})
        assert admission.held == 0


async def test_a_caller_cancelled_in_the_turn_of_its_grant_keeps_no_permit(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(redis_url, max_concurrent_requests=8, lease_seconds=60)
    async with instances(settings, 1) as (admission,):
        task = asyncio.create_task(admission.acquire())
        answer_caller = admission._answer

        def answer_and_cancel(*answered: Any) -> None:
            answer_caller(*answered)
            assert admission.held == 1
            task.cancel()

        monkeypatch.setattr(admission, "_answer", answer_and_cancel)
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        assert admission.held == 0
        await _until_counted(settings, {})


async def test_a_dead_process_frees_its_permits_when_its_lease_is_out(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=4, lease_seconds=1.0)
    async with instances(settings, 2) as (dies, lives):
        await dies.acquire(4)
        assert isinstance(await _try(lives), Overloaded)
        assert dies._task is not None
        dies._task.cancel()
        deadline = time.monotonic() + 20
        while isinstance(await _try(lives, 4), Overloaded):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert await _counted(settings) == {"process-1": 4}


async def test_a_living_process_keeps_its_permits_beyond_the_lease(redis_url: str) -> None:
    # Renewed after a third of it: on a busy machine all of this may stand still for a second.
    settings = _settings(redis_url, max_concurrent_requests=2, lease_seconds=2.0)
    async with instances(settings, 2) as (one, other), async_redis(settings) as client:
        await one.acquire(2)
        first = await client.zscore(KEYS.admission_leases, "process-0")
        deadline = time.monotonic() + 20
        while (await client.zscore(KEYS.admission_leases, "process-0") or 0) < (first or 0) + 2001:
            assert isinstance(await _try(other), Overloaded)
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("wrong", [0, 1, 99])
async def test_a_wrong_count_in_redis_heals_itself(redis_url: str, wrong: int) -> None:
    settings = _settings(redis_url, max_concurrent_requests=4, lease_seconds=0.5)
    async with instances(settings, 1) as (admission,), async_redis(settings) as client:
        await admission.acquire(3)
        if wrong:
            await client.hset(KEYS.admission, "process-0", str(wrong))
        else:
            await client.flushall()
        await _until_counted(settings, {"process-0": 3})


async def test_without_redis_callers_are_refused_in_time_and_served_again_after(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        settings = _settings(server.url, max_concurrent_requests=2, redis_timeout=1.0)
        async with instances(settings, 1) as (admission,):
            permit = await admission.acquire()
            for interrupt, mend in ((server.freeze, server.thaw), (server.kill, server.start)):
                interrupt()
                started = time.monotonic()
                with pytest.raises(ServiceUnavailable, match=r"^The queue \(Redis\) cannot be reached$"):
                    await admission.acquire()
                assert time.monotonic() - started < 10
                mend()
                await _until_counted(settings, {"process-0": 1})
                with await admission.acquire():
                    assert isinstance(await _try(admission), Overloaded)
            permit.release()
            assert admission.held == 0
            await _until_counted(settings, {})


async def test_retry_after_follows_the_rate_at_which_permits_come_back(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=40)
    async with instances(settings, 1) as (admission,):
        permits = [await admission.acquire() for _ in range(40)]
        admission._started -= 20
        refused = await _try(admission)
        assert isinstance(refused, Overloaded)
        assert refused.retry_after == 10
        for permit in permits[:5]:
            permit.release()
        await _until_counted(settings, {"process-0": 35})
        refused = await _try(admission, 10)
        assert isinstance(refused, Overloaded)
        assert refused.retry_after == 20
        for permit in permits[5:]:
            permit.release()


async def test_a_tenants_flood_leaves_permits_to_tenants_that_have_none(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=16)
    async with instances(settings, 2) as (one, other):
        flood = await asyncio.gather(*(one.acquire(1, "a") for _ in range(30)), return_exceptions=True)
        held = [permit for permit in flood if isinstance(permit, Permit)]
        assert len(held) == 14
        assert all(isinstance(refused, Overloaded) for refused in flood if refused not in held)
        with await one.acquire(1, "b"), await other.acquire(1, "b"):
            # The limit is the limit.
            assert isinstance((await asyncio.gather(other.acquire(1, "c"), return_exceptions=True))[0], Overloaded)
        await _until_counted(settings, {"process-0": 14})
        # Without tenants nothing is kept back.
        for permit in held:
            permit.release()
        flood = await asyncio.gather(*(other.acquire() for _ in range(30)), return_exceptions=True)
        held = [permit for permit in flood if isinstance(permit, Permit)]
        assert len(held) == 16
        for permit in held:
            permit.release()


async def test_retry_after_knows_what_waits_in_the_queue(redis_url: str) -> None:
    settings = _settings(redis_url, max_concurrent_requests=1)
    async with instances(settings, 1) as (admission,), async_redis(settings) as client:
        queue = KEYS.queue(settings.model_name, "interactive")
        parameters = GenerationParameters(max_new_tokens=999, seed=0)
        job = Job(id="r", model="m", prompt_ids=[1], parameters=parameters, submitted_at=0.0)
        dispatcher = Dispatcher(client, settings)
        running = asyncio.create_task(dispatcher.run())
        await dispatcher.push(queue, celery_message(job, queue)).done
        running.cancel()
        now = (await client.time())[0]
        # A thousandth of what waits was taken in all the time there was: longer than anybody is told to wait.
        await client.hset(f"{queue}:drained", mapping={"sum": job.cost / 1000, "at": now, "since": now - 1000})
        with await admission.acquire():
            refused = await _try(admission)
            assert isinstance(refused, Overloaded)
            assert refused.retry_after == 60
