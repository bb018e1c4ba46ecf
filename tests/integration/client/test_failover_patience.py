"""Streams that wait: for workers that live and do not deliver, within limits, and for a client that stands still."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from common.client import GenerationClient, control, generation, hearing
from common.errors import DeadlineExceeded
from common.parameters import GenerationParameters
from common.wire import Accepted, Cancel, Cancelled, Failed, Frame, Job, Tokens
from tests.integration.client.failing_workers import first_attempts, half, half_and_hang, paced, quick, text
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

# -- workers that live and do not deliver


async def test_silence_and_lost_frames_lead_to_another_attempt(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "ANSWER_SECONDS", 0.3)

    async def forgets_a_frame(worker: FakeWorker, job: Job) -> None:
        worker.answer_resends = False
        await half(worker, job)
        await worker.emit(job, Tokens(2, [token(2)]), lose=True)
        await worker.emit(job, Tokens(3, [token(3)]))
        await asyncio.Event().wait()

    async def skips_a_token(worker: FakeWorker, job: Job) -> None:
        await worker.accept(job)
        await worker.emit(job, Tokens(len(job.generated_ids) + 1, [token(99)]))
        await asyncio.Event().wait()

    settings = quick(redis_url, stall_timeout=1.5, max_attempts=4)
    async with running(settings, first_attempts(half_and_hang, forgets_a_frame, skips_a_token)) as (client, worker):
        job = client.new_job([1], parameters(10))
        async with client.generate(job) as stream:
            assert await asyncio.wait_for(text(stream), 30) == expected_text(10)
        assert client.counters.resent == {"stalled": 1, "frames_lost": 2}
        # Each time the worker was told to stop; it may have taken the next attempt before it heard of it.
        await until(lambda: [cancel.below for cancel in worker.disowned] == [2, 3, 4])
        assert {cancel.request for cancel in worker.disowned} == {job.id}
        assert set(worker.cancelled) <= {job.id}
        await until(lambda: not worker.running)


async def test_a_worker_that_forgot_the_attempt_is_found_out(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "ANSWER_SECONDS", 0.5)
    async with running(quick(redis_url), first_attempts(half_and_hang)) as (client, worker):
        reader = asyncio.create_task(read_all(client, 10))
        await until(lambda: any(len(frames) == 3 for frames in worker.frames.values()))
        worker.frames.clear()
        await worker.redis.client_kill_filter(_type="pubsub")
        assert await asyncio.wait_for(reader, 30) == expected_text(10)
        assert client.counters.resent == {"frames_lost": 1}


async def test_a_worker_with_nothing_new_is_left_alone(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than what a client takes for its own standing still, and shorter than the questions take.
    monkeypatch.setattr(hearing, "ANSWER_SECONDS", 1.5)
    monkeypatch.setattr(hearing, "SILENCE_ASK_SECONDS", 0.1)
    async with (
        running(quick(redis_url), half_and_hang) as (client, worker),
        client.generate(client.new_job([1], parameters())) as stream,
    ):
        await until(lambda: len(worker.resends) >= 10)
        assert stream.job.attempt == 1


async def test_frames_nobody_waits_for_stop_their_work(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DISOWN_SECONDS", 60.0)
    async with running(quick(redis_url), accept_and_hang) as (client, worker):
        job = client.new_job([1], parameters())
        worker.jobs[job.id] = job
        worker._running[job.id] = asyncio.create_task(accept_and_hang(worker, job))
        for index in range(20):
            await worker.emit(job, Tokens(index, [token(index)]))
        await until(lambda: worker.cancelled == [job.id])
        # Told once, however many frames there were; the end of something is no reason to say anything.
        assert worker.disowned == [Cancel(job.id, 2)]
        await worker.publish(job, [Frame("ended", 3, 7, Cancelled()), Frame("done", 1, 9, Tokens(4, [], finish(4)))])
        await worker.publish(job, [Frame("begun", 3, 0, Accepted(worker.id))])
        await until(lambda: len(worker.disowned) > 1)
        assert worker.disowned[1:] == [Cancel("begun", 4)]


# -- children


async def test_children_that_have_ended_stay_ended(redis_url: str) -> None:
    async def children(worker: FakeWorker, job: Job) -> None:
        """Child 0 has three tokens, child 1 two, child 2 one; in each step the first that is not at its end gets one."""
        await worker.accept(job)
        ids = [list(ids) for ids in [job.generated_ids, *job.sibling_ids]]
        ids += [[] for _ in range(3 - len(ids))]
        lengths = [3, 2, 1]
        steps = 0
        for child in (2, 1, 0):
            offset = len(ids[child])
            rest = [token(10 * child + index) for index in range(offset, lengths[child])]
            for index, one in enumerate(rest or [None]):
                if steps == 2 and job.attempt < 3:
                    await worker.emit(job, Failed("generation", "lost", retryable=True))
                    return
                steps += one is not None
                last = index >= len(rest) - 1
                tokens = [] if one is None else [one]
                await worker.emit(
                    job, Tokens(offset + index, tokens, finish(lengths[child]) if last else None, child, child)
                )

    async with running(quick(redis_url), children) as (client, worker):
        job = client.new_job([1], GenerationParameters(max_new_tokens=3, seed=1, children=3))
        async with client.generate(job) as stream:
            steps = [step async for step in stream]
        assert (stream.generated_ids, stream.sibling_ids) == ([0, 1, 2], [[10, 11], [20]])
        ends = [step.child for step in steps if step.finish is not None]
        assert (sorted(ends), ends[-1], steps[-1].ends) == ([0, 1, 2], 0, True)
        heard = {
            child: [token.id for step in steps if step.child == child for token in step.tokens] for child in range(3)
        }
        assert heard == {0: [0, 1, 2], 1: [10, 11], 2: [20]}
        assert client.counters.resent["worker_failed"] == 2
        assert worker.jobs[job.id].sibling_ids == [[10, 11], [20]]


# -- limits


async def test_a_request_has_a_limit_for_the_whole(redis_url: str) -> None:
    async with running(quick(redis_url), paced) as (client, worker):
        with pytest.raises(DeadlineExceeded, match="finished in time") as raised:
            await read_all(client, 10_000, timeout=2.0)
        assert raised.value.reason == "total"
        await until(lambda: len(worker.cancelled) == 1)
        assert await read_all(client, 5, timeout=30) == expected_text(5)
        (job,) = [job for job in worker.jobs.values() if job.parameters.max_new_tokens == 5]
        assert job.deadline is not None
        assert job.deadline <= time.time() + 30


async def test_it_holds_in_the_queue_and_for_later_attempts(redis_url: str) -> None:
    async with running(quick(redis_url), half_and_hang) as (client, worker):
        stream = await client.generate(client.new_job([1], parameters()), timeout=4.0).__aenter__()
        await until(lambda: len(stream.generated_ids) == 2)
        worker.freeze()
        worker.taking = False
        await until(lambda: stream.job.attempt == 2)
        deadline = stream.job.deadline
        assert deadline is not None
        assert deadline < time.time() + 4.0
        with pytest.raises(DeadlineExceeded) as raised:
            await text(stream)
        assert raised.value.reason == "total"


async def test_closing_between_two_attempts_leaves_nothing_behind(redis_url: str) -> None:
    async def failing(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        worker.taking = False
        await worker.emit(job, Failed("generation", "gone", retryable=True))

    async with running(quick(redis_url), failing) as (client, worker):
        for turns in range(12):
            worker.taking = True
            async with client.generate(client.new_job([1], parameters())) as stream:
                await until(lambda stream=stream: stream.job.attempt == 2)  # type: ignore[misc]
                for _ in range(turns):
                    await asyncio.sleep(0)
            await until(lambda: client.idle)
            queue = worker.keys.queue("scripted", "interactive")
            left = await worker.redis.llen(queue)
            assert left == 0 or await worker.redis.exists(worker.keys.cancelled(stream.job.id))
            await worker.redis.delete(queue)


# -- a submitter that stands still


async def test_a_client_that_stood_still_gives_no_worker_up(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "CATCH_UP_SECONDS", 0.5)
    settings = quick(redis_url, stall_timeout=1.5)
    stop, up = threading.Event(), threading.Event()

    async def serve() -> None:
        worker = FakeWorker(settings, paced)
        await worker.start()
        up.set()
        await asyncio.to_thread(stop.wait)
        await worker.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    client = GenerationClient(settings)
    await client.start()
    try:
        assert await asyncio.to_thread(up.wait, 30)
        async with client.generate(client.new_job([1], parameters(600))) as stream:
            await until(lambda: len(stream.generated_ids) > 10)
            time.sleep(2.5)  # noqa: ASYNC251 - as SIGSTOP does
            assert await asyncio.wait_for(text(stream), 60) == expected_text(600)
        assert client.counters.resent.total() == 0
    finally:
        await client.close()
        stop.set()
        await asyncio.to_thread(thread.join, 30)
