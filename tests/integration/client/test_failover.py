"""Streams whose workers die, freeze, fail or stop: they go on elsewhere, byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from common.client import attempts
from common.errors import DeadlineExceeded, GenerationFailed, RequestCancelled
from common.wire import Cancel, Cancelled, Failed, Job, Tokens
from tests.integration.client.failing_workers import first_attempts, half, paced, pair, quick, text
from tests.integration.client.fake_worker import (
    FakeWorker,
    accept_and_hang,
    expected_text,
    finish,
    parameters,
    read_all,
    running,
    token,
    until,
)

# -- workers that are gone


async def test_a_killed_workers_stream_goes_on_with_the_tokens_so_far(redis_url: str) -> None:
    async with pair(quick(redis_url)) as (client, first, second):
        job = client.new_job([1, 2, 3], parameters(100))
        async with client.generate(job) as stream:
            await until(lambda: len(stream.generated_ids) >= 10)
            first.freeze()
            first.taking, second.taking = False, True
            assert await asyncio.wait_for(text(stream), 30) == expected_text(100)
            assert (stream.worker, stream.job.attempt, stream.finish) == (second.id, 2, finish(100))
        again = second.jobs[job.id]
        assert (again.id, again.prompt_ids, again.parameters) == (job.id, job.prompt_ids, job.parameters)
        assert 10 <= len(again.generated_ids) < 100
        assert again.generated_ids == list(range(len(again.generated_ids)))
        assert client.counters.resent == {"worker_lost": 1}
        redis, keys = second.redis, second.keys
        assert await redis.get(keys.attempt(job.id)) == b"2"
        assert await redis.smembers(keys.attempts(job.id)) == {f"1:{first.id}".encode()}
        assert all([0 < await redis.ttl(key) <= 3600 for key in (keys.attempt(job.id), keys.attempts(job.id))])


async def test_a_frozen_worker_that_comes_back_stops_and_changes_nothing(redis_url: str) -> None:
    async with pair(quick(redis_url)) as (client, first, second):
        async with client.generate(client.new_job([1], parameters(400))) as stream:
            await until(lambda: len(stream.generated_ids) >= 5)
            first.freeze()
            first.taking, second.taking = False, True
            await until(lambda: stream.worker == second.id)
            first.thaw()
            await until(lambda: first.cancelled == [stream.job.id])
            assert await asyncio.wait_for(text(stream), 30) == expected_text(400)
        assert Cancel(stream.job.id, 2) in first.disowned
        assert client.counters.stale_frames > 0
        assert second.cancelled == []


async def test_fifty_streams_of_a_killed_worker_all_go_on(redis_url: str) -> None:
    async with pair(quick(redis_url)) as (client, first, second):
        second.taking = True
        readers = [asyncio.create_task(read_all(client, 200)) for _ in range(50)]

        def all_begun() -> bool:
            begun = [len(frames) > 1 for worker in (first, second) for frames in worker.frames.values()]
            return len(begun) == 50 and all(begun)

        await until(all_begun)
        assert first.taken
        first.freeze()
        assert set(await asyncio.wait_for(asyncio.gather(*readers), 60)) == {expected_text(200)}
        assert client.counters.resent == {"worker_lost": first.taken}
        assert await second.redis.llen(second.keys.queue("scripted", "interactive")) == 0


async def test_without_another_worker_a_stream_waits_until_one_comes(redis_url: str) -> None:
    async with running(quick(redis_url), paced) as (client, first):
        reader = asyncio.create_task(read_all(client, 50))
        await until(lambda: any(len(frames) > 5 for frames in first.frames.values()))
        first.freeze()
        await until(lambda: client.counters.resent.total() == 1)
        second = FakeWorker(client.settings, paced)
        await second.start()
        assert await asyncio.wait_for(reader, 30) == expected_text(50)
        await second.stop()


async def test_without_another_worker_the_queue_limit_ends_it(redis_url: str) -> None:
    async with running(quick(redis_url, queue_timeout=2.5), paced) as (client, first):
        async with client.generate(client.new_job([1], parameters(1000))) as stream:
            await until(lambda: len(stream.generated_ids) > 5)
            first.freeze()
            with pytest.raises(DeadlineExceeded) as raised:
                await asyncio.wait_for(text(stream), 30)
            assert raised.value.reason == "queue_wait"
        # The job has left the queue and is not started by whoever comes.
        assert client.counters.resent == {"worker_lost": 1}
        await until(lambda: client.idle)
        assert await first.redis.llen(first.keys.queue("scripted", "interactive")) == 0


# -- workers that say so


async def test_an_attempt_that_failed_through_no_fault_of_its_request_is_made_again(redis_url: str) -> None:
    async def failing(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.emit(job, Failed("generation", "the engine is gone", retryable=True))

    async with running(quick(redis_url), first_attempts(failing, failing)) as (client, worker):
        assert await asyncio.wait_for(read_all(client, 10), 30) == expected_text(10)
        assert client.counters.resent == {"worker_failed": 2}
        assert [job.generated_ids for job in worker.jobs.values()] == [[0, 1, 2, 3]]
        await until(lambda: len(worker.released) >= 3)
        assert worker.disowned == []


async def test_hand_overs_are_not_counted(redis_url: str) -> None:
    async def stopping(worker: FakeWorker, job: Job) -> None:
        await half(worker, job, tokens=1)
        await worker.emit(job, Failed("unavailable", "stopping", retryable=True, handed_over=True))

    settings = quick(redis_url, max_attempts=1)
    async with running(settings, first_attempts(*[stopping] * 8)) as (client, worker):
        assert await asyncio.wait_for(read_all(client, 10), 30) == expected_text(10)
        assert client.counters.resent == {"handed_over": 8}
        assert await worker.redis.keys("tgq:attempts:*") == []


async def test_hand_overs_without_end_are_an_error(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FRUITLESS_ATTEMPTS", 5)

    async def refusing(worker: FakeWorker, job: Job) -> None:
        await worker.emit(job, Failed("unavailable", "stopping", retryable=True, handed_over=True))

    async with running(quick(redis_url), refusing) as (client, worker):
        with pytest.raises(GenerationFailed, match="5 lost attempts, the last because its worker stopped") as raised:
            await asyncio.wait_for(read_all(client), 30)
        assert raised.value.reason == "attempts"
        assert worker.taken == 5


async def test_losses_after_new_tokens_are_no_poison(redis_url: str) -> None:
    """More workers than `max_attempts` are lost with it, and each brought it on: what one loses is no other's fault."""

    async def dying(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.emit(job, Failed("generation", "the engine is gone", retryable=True))

    async with running(quick(redis_url, max_attempts=2), first_attempts(*[dying] * 4)) as (client, worker):
        async with client.generate(client.new_job([1], parameters(20))) as stream:
            assert await asyncio.wait_for(text(stream), 30) == expected_text(20)
        assert client.counters.resent == {"worker_failed": 4}
        lost = await worker.redis.smembers(worker.keys.attempts(stream.job.id))
        assert lost == {f"4:{worker.id}".encode()}


async def test_a_request_that_takes_its_workers_along_ends_with_an_error(redis_url: str) -> None:
    async def poisoned(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        if not job.generated_ids:
            await worker.emit(job, Tokens(0, [token(0)]))
        await worker.emit(job, Failed("generation", GenerationFailed("CUDA error").message, retryable=True))

    async with running(quick(redis_url, max_attempts=3), poisoned) as (client, worker):
        async with client.generate(client.new_job([1], parameters(100))) as stream:
            with pytest.raises(
                GenerationFailed, match="generation: given up after 3 lost attempts, the last because CUDA error"
            ) as raised:
                await asyncio.wait_for(text(stream), 30)
        assert raised.value.reason == "attempts"
        assert worker.taken == 3
        assert client.counters.given_up == 1
        lost = {f"{attempt}:{worker.id}".encode() for attempt in (1, 2, 3)}
        assert await worker.redis.smembers(worker.keys.attempts(stream.job.id)) == lost
        assert await worker.redis.llen(worker.keys.queue("scripted", "interactive")) == 0


async def test_what_others_lost_with_the_request_counts_as_well(redis_url: str) -> None:
    async with (
        running(quick(redis_url, max_attempts=3), accept_and_hang) as (client, worker),
        client.generate(client.new_job([1], parameters())) as stream,
    ):
        await until(lambda: stream.worker == worker.id)
        await worker.redis.sadd(worker.keys.attempts(stream.job.id), "1:a", "1:b")
        worker.freeze()
        with pytest.raises(GenerationFailed, match="3 lost attempts"):
            await asyncio.wait_for(text(stream), 30)


async def test_a_cancellation_nobody_asked_for_is_made_good(redis_url: str) -> None:
    async def cancelling(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.emit(job, Cancelled())

    async with running(quick(redis_url), first_attempts(cancelling)) as (client, _):
        assert await asyncio.wait_for(read_all(client, 10), 30) == expected_text(10)
        assert client.counters.resent == {"cancelled": 1}


async def test_a_cancellation_by_somebody_else_ends_the_stream(redis_url: str) -> None:
    async def cancelling(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.redis.set(worker.keys.cancelled(job.id), "1", ex=60)
        await worker.emit(job, Cancelled())

    async with running(quick(redis_url), cancelling) as (client, worker):
        with pytest.raises(RequestCancelled, match="cancelled") as raised:
            await asyncio.wait_for(read_all(client, 10), 30)
        assert raised.value.reason == "cancelled"
        assert worker.taken == 1
