"""Streams whose workers die, freeze, fail, stop or forget: they go on elsewhere, byte for byte."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from common.client import GenerationClient, TokenStream, attempts, generation, hearing
from common.errors import DeadlineExceeded, GenerationFailed, RequestCancelled
from common.parameters import GenerationParameters
from common.settings import Settings
from common.wire import Accepted, Cancel, Cancelled, Failed, Frame, Job, Tokens
from tests.integration.client.fake_worker import (
    Behaviour,
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


def quick(url: str, **values: Any) -> Settings:
    """Lost workers are noticed sooner than by default, relative to the fake worker's beats as late as by default."""
    return settings_for(url, **{"heartbeat_seconds": 0.2, "worker_dead_after": 0.6, **values})


async def paced(worker: FakeWorker, job: Job) -> None:
    """A token every few milliseconds, behind those there are."""
    await worker.accept(job)
    count = job.parameters.max_new_tokens
    for index in range(len(job.generated_ids), count):
        await asyncio.sleep(0.005)
        await worker.emit(job, Tokens(index, [token(index)], finish(count) if index == count - 1 else None))


def first_attempts(*lost: Behaviour) -> Behaviour:
    """One behaviour for each attempt; later ones answer."""

    async def behaviour(worker: FakeWorker, job: Job) -> None:
        await (lost[job.attempt - 1] if job.attempt <= len(lost) else answer_all)(worker, job)

    return behaviour


async def half(worker: FakeWorker, job: Job, *, tokens: int = 2) -> None:
    """Two more tokens."""
    await worker.accept(job)
    for index in range(len(job.generated_ids), len(job.generated_ids) + tokens):
        await worker.emit(job, Tokens(index, [token(index)]))


async def half_and_hang(worker: FakeWorker, job: Job) -> None:
    await half(worker, job)
    await asyncio.Event().wait()


@asynccontextmanager
async def pair(
    settings: Settings, behaviour: Behaviour = paced
) -> AsyncIterator[tuple[GenerationClient, FakeWorker, FakeWorker]]:
    """Two workers; the second takes nothing until `second.taking` is set."""
    async with running(settings, behaviour) as (client, first):
        second = FakeWorker(settings, behaviour)
        second.taking = False
        await second.start()
        try:
            yield client, first, second
        finally:
            await second.stop()


async def text(stream: TokenStream) -> str:
    tokens = [token async for step in stream for token in step.tokens]
    assert [token.id for token in tokens] == stream.generated_ids
    return text_of(tokens)


# -- workers that are gone


async def test_a_killed_workers_stream_goes_on_with_the_tokens_so_far(redis_url: str) -> None:
    async with pair(quick(redis_url)) as (client, first, second):
        job = client.new_job([1, 2, 3], parameters(100))
        async with client.generate(job) as stream:
            await until(lambda: len(stream.generated_ids) >= 10)
            first.freeze()
            first.taking, second.taking = False, True
            assert await asyncio.wait_for(text(stream), 5) == expected_text(100)
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
            assert await asyncio.wait_for(text(stream), 10) == expected_text(400)
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
        assert set(await asyncio.wait_for(asyncio.gather(*readers), 20)) == {expected_text(200)}
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
        assert await asyncio.wait_for(reader, 5) == expected_text(50)
        await second.stop()


async def test_without_another_worker_the_queue_limit_ends_it(redis_url: str) -> None:
    async with running(quick(redis_url, queue_timeout=1.0), paced) as (client, first):
        async with client.generate(client.new_job([1], parameters(1000))) as stream:
            await until(lambda: len(stream.generated_ids) > 5)
            first.freeze()
            with pytest.raises(DeadlineExceeded) as raised:
                await asyncio.wait_for(text(stream), 10)
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
        assert await asyncio.wait_for(read_all(client, 10), 5) == expected_text(10)
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
        assert await asyncio.wait_for(read_all(client, 10), 5) == expected_text(10)
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
            assert await asyncio.wait_for(text(stream), 5) == expected_text(20)
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
                await asyncio.wait_for(text(stream), 5)
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
            await asyncio.wait_for(text(stream), 5)


async def test_a_cancellation_nobody_asked_for_is_made_good(redis_url: str) -> None:
    async def cancelling(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.emit(job, Cancelled())

    async with running(quick(redis_url), first_attempts(cancelling)) as (client, _):
        assert await asyncio.wait_for(read_all(client, 10), 5) == expected_text(10)
        assert client.counters.resent == {"cancelled": 1}


async def test_a_cancellation_by_somebody_else_ends_the_stream(redis_url: str) -> None:
    async def cancelling(worker: FakeWorker, job: Job) -> None:
        await half(worker, job)
        await worker.redis.set(worker.keys.cancelled(job.id), "1", ex=60)
        await worker.emit(job, Cancelled())

    async with running(quick(redis_url), cancelling) as (client, worker):
        with pytest.raises(RequestCancelled, match="cancelled") as raised:
            await asyncio.wait_for(read_all(client, 10), 5)
        assert raised.value.reason == "cancelled"
        assert worker.taken == 1


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

    settings = quick(redis_url, stall_timeout=1.0, max_attempts=4)
    async with running(settings, first_attempts(half_and_hang, forgets_a_frame, skips_a_token)) as (client, worker):
        job = client.new_job([1], parameters(10))
        async with client.generate(job) as stream:
            assert await asyncio.wait_for(text(stream), 10) == expected_text(10)
        assert client.counters.resent == {"stalled": 1, "frames_lost": 2}
        # Each time the worker was told to stop.
        assert [cancel.below for cancel in worker.disowned] == [2, 3, 4]
        assert worker.cancelled == [job.id] * 3
        assert not worker.running


async def test_a_worker_that_forgot_the_attempt_is_found_out(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "ANSWER_SECONDS", 0.5)
    async with running(quick(redis_url), first_attempts(half_and_hang)) as (client, worker):
        reader = asyncio.create_task(read_all(client, 10))
        await until(lambda: any(len(frames) == 3 for frames in worker.frames.values()))
        worker.frames.clear()
        await worker.redis.client_kill_filter(_type="pubsub")
        assert await asyncio.wait_for(reader, 10) == expected_text(10)
        assert client.counters.resent == {"frames_lost": 1}


async def test_a_worker_with_nothing_new_is_left_alone(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(hearing, "SILENCE_ASK_SECONDS", 0.1)
    async with (
        running(quick(redis_url), half_and_hang) as (client, worker),
        client.generate(client.new_job([1], parameters())) as stream,
    ):
        await until(lambda: len(worker.resends) >= 8)
        assert stream.job.attempt == 1


async def test_frames_nobody_waits_for_stop_their_work(redis_url: str) -> None:
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
            await read_all(client, 10_000, timeout=0.5)
        assert raised.value.reason == "total"
        await until(lambda: len(worker.cancelled) == 1)
        assert await read_all(client, 5, timeout=5) == expected_text(5)
        (job,) = [job for job in worker.jobs.values() if job.parameters.max_new_tokens == 5]
        assert job.deadline is not None
        assert job.deadline <= time.time() + 5


async def test_it_holds_in_the_queue_and_for_later_attempts(redis_url: str) -> None:
    async with running(quick(redis_url), half_and_hang) as (client, worker):
        stream = await client.generate(client.new_job([1], parameters()), timeout=1.5).__aenter__()
        await until(lambda: len(stream.generated_ids) == 2)
        worker.freeze()
        worker.taking = False
        await until(lambda: stream.job.attempt == 2)
        deadline = stream.job.deadline
        assert deadline is not None
        assert deadline < time.time() + 1.5
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
        await asyncio.to_thread(up.wait, 5)
        async with client.generate(client.new_job([1], parameters(600))) as stream:
            await until(lambda: len(stream.generated_ids) > 10)
            time.sleep(2.5)  # noqa: ASYNC251 - as SIGSTOP does
            assert await asyncio.wait_for(text(stream), 15) == expected_text(600)
        assert client.counters.resent.total() == 0
    finally:
        await client.close()
        stop.set()
        await asyncio.to_thread(thread.join, 5)
