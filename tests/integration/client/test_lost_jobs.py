"""Jobs that vanish before a worker took them, and jobs that only wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from common.client import GenerationClient, TokenStream, queue_watch
from common.client.counters import ClientCounters
from common.client.failover import NextAttempt, Outcome, Resender, SentMessage
from common.errors import RequestCancelled
from common.keys import Keys
from common.redis_clients import async_redis
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import (
    FakeWorker,
    accept_and_hang,
    expected_text,
    parameters,
    read_all,
    running,
    settings_for,
    until,
)

KEYS = Keys()
QUEUE = KEYS.queue("scripted", "interactive")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(queue_watch, "FIRST_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(queue_watch, "LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(queue_watch, "MISSING_SECONDS", 0.2)


def _hurry_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken now may be heard of late: that is no other loss."""
    monkeypatch.setattr(queue_watch, "MISSING_SECONDS", 60.0)


async def _looks(client: GenerationClient, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until the queue watch has found `count` jobs."""
    seen = 0
    looked = queue_watch.Watched.looked

    def counting(self: queue_watch.Watched, found: bool, now: float) -> bool:
        nonlocal seen
        seen += 1
        return looked(self, found, now)

    monkeypatch.setattr(queue_watch.Watched, "looked", counting)
    await until(lambda: seen >= count)


@pytest.mark.parametrize("loss", ["flushall", "queue"])
async def test_queued_jobs_that_vanish_are_sent_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        readers = [asyncio.create_task(read_all(client)) for _ in range(100)]
        await until(lambda: sum(stream.watched is not None for stream in client._relay.streams.values()) == 100)
        await (worker.redis.flushall() if loss == "flushall" else worker.redis.delete(QUEUE))
        await until(lambda: client.counters.resent == {"not_queued": 100})
        assert await worker.redis.llen(QUEUE) == 100
        _hurry_no_more(monkeypatch)
        worker.taking = True
        assert set(await asyncio.wait_for(asyncio.gather(*readers), 30)) == {expected_text(5)}
        assert worker.taken == 100
        assert client.counters.resent == {"not_queued": 100}


async def test_one_of_many_that_vanishes_is_sent_again(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        readers = [asyncio.create_task(read_all(client)) for _ in range(20)]
        await until(lambda: sum(stream.watched is not None for stream in client._relay.streams.values()) == 20)
        lost = await worker.redis.lindex(QUEUE, 7)
        await worker.redis.lrem(QUEUE, 1, lost)  # type: ignore[arg-type]
        await until(lambda: client.counters.resent.total() == 1)
        _hurry_no_more(monkeypatch)
        worker.taking = True
        assert set(await asyncio.wait_for(asyncio.gather(*readers), 30)) == {expected_text(5)}
        assert worker.taken == 20


async def test_running_streams_do_not_notice_lost_data(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker._behaviour = accept_and_hang
        async with client.generate(client.new_job([1], parameters())) as stream:
            await until(lambda: stream.worker is not None)
            await worker.redis.flushall()
            looks = client._watch.looks
            await until(lambda: client._watch.looks > looks + 3)
            assert stream.job.attempt == 1
            assert client.counters.resent.total() == 0


async def _in_queue(worker: FakeWorker, stream: TokenStream) -> None:
    assert await worker.redis.llen(KEYS.tenant_queue(QUEUE, stream.job.tenant)) == 1


async def _pulled(worker: FakeWorker, stream: TokenStream) -> None:
    assert stream.watched is not None
    sent = stream.watched.sent
    await worker.redis.hset(KEYS.unacked(worker.id), sent.tag, "[...]")  # first: it is never nowhere
    await worker.redis.lrem(KEYS.tenant_queue(QUEUE, stream.job.tenant), 1, sent.message)  # type: ignore[arg-type]


@pytest.mark.parametrize("tenant", ["", "a"])
@pytest.mark.parametrize("place", [_in_queue, _pulled])
async def test_a_job_that_only_waits_is_left_alone(
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[FakeWorker, TokenStream], Awaitable[None]],
    tenant: str,
) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        async with client.generate(client.new_job([1], parameters(), tenant=tenant)) as stream:
            await place(worker, stream)
            await _looks(client, monkeypatch, 6)
            assert stream.job.attempt == 1
            assert worker.resends == []


async def test_a_long_queue_is_looked_through_a_few_at_a_time(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    turn = queue_watch.QueueWatch._found

    async def counted(self: queue_watch.QueueWatch, sent: Sequence[SentMessage]) -> list[bool]:
        nonlocal most
        most = max(most, len(sent))
        return await turn(self, sent)

    monkeypatch.setattr(queue_watch.QueueWatch, "_found", counted)
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        readers = [asyncio.create_task(read_all(client, 1)) for _ in range(300)]
        await until(lambda: sum(stream.watched is not None for stream in client._relay.streams.values()) == 300)
        await _looks(client, monkeypatch, 100)
        assert most == queue_watch.LOOKS_PER_TURN
        _hurry_no_more(monkeypatch)
        worker.taking = True
        await asyncio.gather(*readers)
        assert worker.taken == 300
        assert client.counters.resent.total() == 0


async def test_a_job_that_was_accepted_without_our_hearing_it_is_not_run_twice(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry_no_more(monkeypatch)
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        async with client.generate(client.new_job([1], parameters(1))) as stream:
            await worker.redis.delete(QUEUE)
            # It is asked for before it is sent again.
            await until(lambda: len(worker.resends) == 1)
            await worker.accept(stream.job)
            await until(lambda: stream.worker == worker.id)
            assert stream.watched is None
            assert stream.job.attempt == 1


async def test_a_queued_job_that_somebody_cancelled_ends(redis_url: str) -> None:
    async with running(settings_for(redis_url)) as (client, worker):
        worker.taking = False
        async with client.generate(client.new_job([1], parameters())) as stream:
            await worker.redis.set(KEYS.cancelled(stream.job.id), "1", ex=60)
            await worker.redis.delete(QUEUE)
            with pytest.raises(RequestCancelled, match="cancelled"):
                await asyncio.wait_for(anext(stream), 30)


async def test_a_restart_without_persistence_loses_no_queued_job(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        async with running(settings_for(server.url)) as (client, worker):
            worker.taking = False
            readers = [asyncio.create_task(read_all(client)) for _ in range(20)]
            await until(lambda: sum(stream.watched is not None for stream in client._relay.streams.values()) == 20)
            await asyncio.to_thread(server.kill)
            await until(lambda: not client.connected)
            worker.taking = True
            await asyncio.to_thread(server.start)
            assert set(await asyncio.wait_for(asyncio.gather(*readers), 30)) == {expected_text(5)}


class _Requester:
    def __init__(self) -> None:
        self.ended = False
        self.messages: list[SentMessage] = []
        self.outcomes: list[Outcome] = []

    def resending(self, message: SentMessage) -> None:
        self.messages.append(message)

    def resent(self, outcome: Outcome, now: float) -> None:
        self.outcomes.append(outcome)


async def test_a_push_whose_answer_was_lost_is_not_repeated(redis_url: str) -> None:
    settings = settings_for(redis_url)
    redis = async_redis(settings)
    job = GenerationClient(settings).new_job([1], parameters())
    requester = _Requester()

    def attempt(number: int, *losses: str, message: SentMessage | None = None) -> NextAttempt:
        following = msgspec.structs.replace(job, attempt=number)
        return NextAttempt(following, QUEUE, "worker_lost", losses, False, False, requester, message)

    async def push(following: NextAttempt) -> int:
        resender = Resender(redis, KEYS, settings, ClientCounters())
        resender.send(following)
        await resender._flush()
        return int(await redis.llen(QUEUE))

    second = attempt(2, "1:a")
    assert await push(second) == 1
    assert await push(second) == 1
    assert len(requester.messages) == 1
    # Redis lost everything: what is known to be lost is said again.
    await redis.flushall()
    assert await push(attempt(3, "1:a", "2:a")) == 1
    assert await redis.smembers(KEYS.attempts(job.id)) == {b"1:a", b"2:a"}
    assert await push(attempt(4, "1:a", "2:a", "3:b")) == 1
    assert requester.outcomes == ["sent", "sent", "sent", "given_up"]
    requester.ended = True
    assert await push(attempt(5)) == 1
    assert len(requester.outcomes) == 4
    await redis.aclose()
