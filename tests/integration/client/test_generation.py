"""The client against a real server and a worker that behaves as each test wants."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import redis
import redis.asyncio

from common.client import GenerationClient, hearing, token_buffer
from common.errors import (
    DeadlineExceeded,
    GenerationFailed,
    IncompleteGeneration,
    InvalidRequest,
    Overloaded,
    ServiceUnavailable,
)
from common.keys import Keys
from common.wire import Accepted, Failed, Frame, Job, Tokens
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
    token,
    until,
)

KEYS = Keys()
QUEUE = KEYS.queue("scripted", "interactive")


def _queue_length(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.llen(QUEUE))


async def test_tokens_arrive_in_order_with_finish_and_timings(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        job = client.new_job([1, 2, 3], parameters(20))
        async with client.generate(job) as stream:
            tokens = [token async for step in stream for token in step.tokens]
        assert [token.id for token in tokens] == list(range(20)) == stream.generated_ids
        assert stream.finish == finish(20)
        assert stream.worker == worker.id
        times = stream.timings
        assert times.queued is not None
        assert times.accepted is not None
        assert times.first_token is not None
        assert times.last_token is not None
        assert times.ended is not None
        assert times.submitted <= times.accepted <= times.first_token <= times.last_token <= times.ended
        assert client.open_streams == 0
        await until(lambda: worker.released == [job.id])
        assert worker.cancelled == []


async def test_a_thousand_answers_without_delay_lose_nothing(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        limit = asyncio.Semaphore(32)

        async def one() -> str:
            async with limit:
                return await read_all(client, 3)

        texts = await asyncio.gather(*(one() for _ in range(1000)))
        assert set(texts) == {expected_text(3)}
        assert worker.resends == []
        await until(lambda: len(worker.released) == 1000)


async def test_waiting_frames_are_delivered_as_one(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, _):
        async with client.generate(client.new_job([1], parameters(50))) as stream:
            await until(lambda: stream.ended)
            assert await stream.ready(0)
            steps = [step async for step in stream]
        assert len(steps) == 1
        assert [token.id for token in steps[0].tokens] == list(range(50))
        assert steps[0].finish == finish(50)


async def test_ready_waits_without_taking(redis_url: str) -> None:
    go = asyncio.Event()

    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        await go.wait()
        await worker.emit(job, Tokens(0, [token(0)], finish(1)))

    async with (
        running(settings_for(redis_url), behaviour) as (client, _),
        client.generate(client.new_job([1], parameters(1))) as stream,
    ):
        assert not await stream.ready(0.05)
        go.set()
        assert await stream.ready(5)
        assert [step.tokens async for step in stream] == [[token(0)]]


async def test_a_gap_is_repaired_by_the_worker(redis_url: str) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.emit(job, Accepted(worker.id))
        for index in range(10):
            last = finish(10) if index == 9 else None
            await worker.emit(job, Tokens(index, [token(index)], last), lose=index in (3, 4, 7))

    async with running(settings_for(redis_url), behaviour) as (client, worker):
        assert await read_all(client, 10) == expected_text(10)
        # The frame before the missing one is asked for, too.
        assert worker.resends[0].from_sequence == 3


async def test_a_lost_acceptance_is_repaired(redis_url: str) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.emit(job, Accepted(worker.id), lose=True)
        await worker.emit(job, Tokens(0, [token(0)], finish(1)))

    async with running(settings_for(redis_url), behaviour) as (client, worker):
        assert await read_all(client, 1) == expected_text(1)
        assert worker.resends[0].from_sequence == 0


async def test_a_lost_last_frame_is_asked_for(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "SILENCE_ASK_SECONDS", 0.3)

    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.emit(job, Accepted(worker.id))
        await worker.emit(job, Tokens(0, [token(0)], finish(1)), lose=True)

    async with running(settings_for(redis_url), behaviour) as (client, worker):
        assert await read_all(client, 1) == expected_text(1)
        assert worker.resends[0].from_sequence == 0


async def test_doubled_stale_and_unknown_frames_change_nothing(redis_url: str) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        wrong = Tokens(0, [token(99)], finish(1))
        await worker.publish(job, [Frame(job.id, job.attempt - 1, 1, wrong), Frame(job.id, job.attempt + 1, 1, wrong)])
        await worker.publish(job, [Frame("someone else", 1, 1, wrong)])
        await worker.publish(job, [Frame(job.id, job.attempt, 1, wrong)], worker="impostor")
        for index in range(5):
            await worker.emit(job, Tokens(index, [token(index)], finish(5) if index == 4 else None))
            await worker.publish(job, worker.frames[job.id, job.attempt])

    async with running(settings_for(redis_url), behaviour) as (client, _):
        assert await read_all(client, 5) == expected_text(5)


async def test_an_unreadable_message_does_not_end_the_subscription(redis_url: str) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        assert job.reply_to is not None
        await worker.redis.publish(job.reply_to, b"\xc1 no message")
        await answer_all(worker, job)

    async with running(settings_for(redis_url), behaviour) as (client, _):
        assert await read_all(client) == expected_text(5)


async def test_a_second_worker_that_starts_the_same_attempt_repeats_nothing(redis_url: str) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        first = [Frame(job.id, 1, 0, Accepted("first")), Frame(job.id, 1, 1, Tokens(0, [token(0), token(1)]))]
        await worker.publish(job, first, worker="first")
        await answer_all(worker, job)

    async with running(settings_for(redis_url), behaviour) as (client, _):
        assert await read_all(client) == expected_text(5)


@pytest.mark.parametrize(
    ("error_type", "expected"),
    [("generation", GenerationFailed), ("validation", InvalidRequest), ("timeout", DeadlineExceeded)],
)
async def test_a_failure_of_the_worker_comes_after_its_tokens(
    redis_url: str, error_type: str, expected: type[Exception]
) -> None:
    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        await worker.emit(job, Tokens(0, [token(0)]))
        await worker.emit(job, Failed(error_type, "as the worker wrote it"))

    async with running(settings_for(redis_url), behaviour) as (client, worker):
        async with client.generate(client.new_job([1], parameters())) as stream:
            await until(lambda: stream.ended)
            assert (await anext(stream)).tokens == [token(0)]
            with pytest.raises(expected, match=r"^as the worker wrote it$"):
                await anext(stream)
        await until(lambda: len(worker.released) == 1)
        assert worker.cancelled == []


async def test_no_worker_in_time_is_a_deadline_error_and_the_job_leaves_the_queue(redis_url: str) -> None:
    async with running(settings_for(redis_url, queue_timeout=0.3)) as (client, worker):
        worker.taking = False
        with pytest.raises(DeadlineExceeded):
            await read_all(client)
        await asyncio.to_thread(_until_queue_is_empty, redis_url)
        assert client.open_streams == 0


async def test_a_reader_that_is_too_slow_fails_alone(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_buffer, "UNREAD_FRAMES", 20)
    monkeypatch.setattr(token_buffer, "SLOW_READER_SECONDS", 0.5)

    async def endless(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        for index in range(job.parameters.max_new_tokens):
            await worker.emit(job, Tokens(index, [token(index)], finish(index + 1) if index == 299 else None))
            await asyncio.sleep(0.002)

    async with running(settings_for(redis_url), endless) as (client, worker):
        async with client.generate(client.new_job([1], parameters(10_000))) as slow:
            assert await read_all(client, 300) == expected_text(300)
            await until(lambda: slow.ended)
            with pytest.raises(IncompleteGeneration, match="slow"):
                await anext(slow)
        await until(lambda: worker.cancelled == [slow.job.id])


def _until_queue_is_empty(url: str) -> None:
    deadline = time.monotonic() + 30
    while _queue_length(url):
        assert time.monotonic() < deadline, "the job is still queued"
        time.sleep(0.01)


async def test_leaving_while_queued_takes_the_job_out_of_the_queue(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        async with client.generate(client.new_job([1], parameters())) as stream:
            assert await asyncio.to_thread(_queue_length, redis_url) == 1
        await asyncio.to_thread(_until_queue_is_empty, redis_url)
        worker.taking = True
        assert await read_all(client) == expected_text(5)
        assert stream.job.id not in worker.jobs
        assert not await worker.redis.exists(KEYS.cancelled(stream.job.id))


async def test_leaving_while_running_stops_the_worker_once(redis_url: str) -> None:
    async with running(settings_for(redis_url), accept_and_hang) as (client, worker):
        async with client.generate(client.new_job([1], parameters())) as stream:
            await until(lambda: stream.worker is not None)
            stream.close()
            stream.close()
            with pytest.raises(IncompleteGeneration):
                await anext(stream)
        await until(lambda: worker.cancelled == [stream.job.id])
        assert 0 < await worker.redis.ttl(KEYS.cancelled(stream.job.id)) <= 3600
        assert client.open_streams == 0


async def test_a_cancelled_reader_cancels_its_job(redis_url: str) -> None:
    async with running(settings_for(redis_url), accept_and_hang) as (client, worker):
        reader = asyncio.create_task(read_all(client))
        await until(lambda: len(worker.jobs) == 1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await until(lambda: len(worker.cancelled) == 1)
        assert client.open_streams == 0


async def test_a_caller_cancelled_while_it_submits_leaves_no_job_behind(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False

        async def submit() -> None:
            async with client.generate(client.new_job([1], parameters())):
                await asyncio.Event().wait()

        for turns in range(40):
            task = asyncio.create_task(submit())
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert client.open_streams == 0
        await asyncio.to_thread(_until_queue_is_empty, redis_url)
        worker.taking = True
        assert await read_all(client) == expected_text(5)
        assert len(worker.jobs) == 1


async def test_a_full_queue_refuses(redis_url: str) -> None:
    async with running(settings_for(redis_url, queue_limit=2)) as (client, worker):
        worker.taking = False
        async with (
            client.generate(client.new_job([1], parameters())),
            client.generate(client.new_job([1], parameters())),
        ):
            with pytest.raises(Overloaded) as refused:
                await read_all(client)
            assert refused.value.retry_after == 10  # Nobody takes anything.
            assert await asyncio.to_thread(_queue_length, redis_url) == 2
            assert client.open_streams == 2
            assert client._control.pending == 0
            assert await worker.redis.keys("tgq:cancelled:*") == []


async def test_a_job_of_another_client_is_refused(redis_url: str) -> None:
    settings = settings_for(redis_url)
    mine, other = GenerationClient(settings), GenerationClient(settings)
    with pytest.raises(ValueError, match="reply_to"):
        mine.generate(other.new_job([1], parameters()))
    await mine.close()
    await other.close()


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        job = client.new_job([1], parameters())
        async with client.generate(job) as stream:
            with pytest.raises(ValueError, match="running"):
                async with client.generate(job):
                    pass
            worker.taking = True
            assert [token.id async for step in stream for token in step.tokens] == list(range(5))


async def test_closing_the_client_cancels_what_is_open(redis_url: str) -> None:
    settings = settings_for(redis_url)
    async with running(settings, accept_and_hang) as (_, worker):
        client = GenerationClient(settings)
        await client.start()
        stream = await client.generate(client.new_job([1], parameters())).__aenter__()
        await until(lambda: stream.worker is not None)
        await client.close()
        await until(lambda: worker.cancelled == [stream.job.id])


async def test_without_redis_requests_are_refused_in_time() -> None:
    client = GenerationClient(settings_for("redis://127.0.0.1:1/0", redis_timeout=0.5))
    await client.start()
    assert not client.connected
    started = time.monotonic()
    with pytest.raises(ServiceUnavailable):
        await read_all(client)
    assert time.monotonic() - started < 10  # a client of Redis by default waits 25 s
    assert client.open_streams == 0
    await client.close()


async def test_a_thousand_requests_with_readers_leaving_at_random_leak_nothing(redis_url: str) -> None:
    async def paced(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        for index in range(5):
            await asyncio.sleep(random.random() * 0.004)
            await worker.emit(job, Tokens(index, [token(index)], finish(5) if index == 4 else None))

    async with running(settings_for(redis_url), paced) as (client, worker):
        limit = asyncio.Semaphore(64)
        noise = random.Random(7)

        async def one(patience: float | None) -> bool:
            async with limit:
                try:
                    async with asyncio.timeout(patience):
                        assert await read_all(client, 5) == expected_text(5)
                except TimeoutError:
                    return False
                return True

        patience = [noise.random() * 0.03 if noise.random() < 0.3 else None for _ in range(1000)]
        done = await asyncio.gather(*map(one, patience))
        assert all(finished for finished, limit in zip(done, patience, strict=True) if limit is None)
        assert not all(done)
        assert client.open_streams == 0
        await until(lambda: client.idle and not worker.running)
        await asyncio.to_thread(_until_queue_is_empty, redis_url)
        keys = [key.decode() if isinstance(key, bytes) else key for key in await worker.redis.keys("*")]
        left = [key for key in keys if not key.startswith(("tgq:worker", "tgq:cancelled:"))]
        assert left == []
        assert all([await worker.redis.ttl(key) > 0 for key in keys if key.startswith("tgq:cancelled:")])
