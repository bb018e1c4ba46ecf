"""One of two workers ends, asked to or killed."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import cast

import httpx
import pytest

from common.keys import Keys
from common.reaper import RESTART_GRACE_SECONDS
from ops.local_service import LocalService, Part
from tests.acceptance.clients import LongStream, body, generate, script, start_stream
from tests.acceptance.observation import Observer, assert_alive, in_flight, until
from tests.acceptance.pair import DEAD_AFTER, SLOTS

HANDED_OVER_SECONDS = 5.0
TEXT = "again and again "


@pytest.fixture
def service(two_workers: LocalService) -> LocalService:
    return two_workers


async def streams_by_worker(
    client: httpx.AsyncClient, seen: Observer, first: Part, prompt: str, slots: int = SLOTS
) -> tuple[list[LongStream], list[LongStream]]:
    """Streams in `slots` slots of both workers: those that `first` runs, and the other worker's."""
    streams: tuple[list[LongStream], list[LongStream]] = ([], [])
    spare: list[LongStream] = []
    while min(map(len, streams)) < slots:
        before = seen.worker(first.pid).running
        total = seen.running()
        stream = await start_stream(client, prompt)
        await until(partial(runs, seen, total + 1), 5, "the stream in an engine")
        mine = streams[0] if seen.worker(first.pid).running > before else streams[1]
        (mine if len(mine) < slots else spare).append(stream)
    for stream in spare:
        await stream.leave()
    await until(lambda: seen.running() == 2 * slots, 5, "the streams alone")
    return streams


def runs(seen: Observer, count: int) -> bool:
    return seen.running() == count


async def test_the_streams_of_a_killed_worker_go_on_at_another(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    doomed, other = service.workers
    lefts, others = await streams_by_worker(client, seen, doomed, script(TEXT, repeat=20, step_ms=50), 1)
    engine = seen.worker(doomed.pid).engine_pid
    doomed.kill()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(stream.finish() for stream in (*lefts, *others))) == [TEXT * 20] * 2
    await until(lambda: not Path(f"/proc/{engine}").exists(), 5, "the end of its engine")
    assert await generate(client, script("Served by the other.")) == "Served by the other."
    await seen.until_idle()
    assert await in_flight(client) == 0
    assert_alive(other, *service.web)


async def test_a_frozen_worker_loses_its_streams_and_may_come_back(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    frozen, other = service.workers
    prompt = script(TEXT, repeat=20, step_ms=50)
    lefts, others = await streams_by_worker(client, seen, frozen, prompt, 1)
    engine = seen.worker(frozen.pid).engine_pid
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        await until(lambda: seen.worker(other.pid).running == 2, DEAD_AFTER + 3, "both streams at the other")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await until(lambda: len(seen.workers()) == 2, 5, "the worker's return")
    await until(lambda: seen.worker(frozen.pid).running == 0, 5, "the end of the request nobody waits for there")
    assert await asyncio.gather(*(stream.finish() for stream in (*lefts, *others))) == [TEXT * 20] * 2
    assert seen.worker(frozen.pid).engine_pid == engine
    await seen.until_idle()
    both = await streams_by_worker(client, seen, frozen, script("as before ", repeat=5, step_ms=20), 1)
    assert [await stream.finish() for streams in both for stream in streams] == ["as before " * 5] * 2
    assert_alive(frozen, other, *service.web)


async def test_a_worker_told_to_stop_hands_its_streams_over(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    leaving, other = service.workers
    lefts, others = await streams_by_worker(client, seen, leaving, script(TEXT, repeat=20, step_ms=50), 1)
    leaving.terminate()
    await until(lambda: seen.worker(other.pid).running == 2, HANDED_OVER_SECONDS, "both streams at the other")
    await until(lambda: not leaving.alive, HANDED_OVER_SECONDS + 5, "the worker's end")
    assert leaving.wait(0) == 0, leaving.tail()
    await until(lambda: len(seen.workers()) == 1, 5, "the registry without it")
    assert await asyncio.gather(*(stream.finish() for stream in (*lefts, *others))) == [TEXT * 20] * 2
    await seen.until_idle()
    assert_alive(other, *service.web)


async def test_a_worker_told_to_finish_keeps_its_streams(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    """Full workers, and a queue: what runs ends where it is, what waits is served by the other one."""
    service.workers[0].terminate()
    assert service.workers.pop(0).wait(10) == 0
    leaving = service.add_worker({"TGQ_ON_SIGTERM": "finish"})
    service.wait_ready()
    other = service.workers[0]
    text = "to the end " * 30
    prompt = script("to the end ", repeat=30, step_ms=50)
    lefts, others = await streams_by_worker(client, seen, leaving, prompt)
    queued = [asyncio.create_task(generate(client, script(f"queued {number}"))) for number in range(4)]
    await until(lambda: seen.queued() == len(queued), 5, "the queue")
    leaving.terminate()
    await until(lambda: seen.worker(leaving.pid).state == "draining", 5, "the notice")
    assert seen.worker(leaving.pid).running == SLOTS
    assert await asyncio.gather(*(stream.finish() for stream in (*lefts, *others))) == [text] * (2 * SLOTS)
    assert await asyncio.gather(*queued) == [f"queued {number}" for number in range(4)]
    await until(lambda: not leaving.alive, 10, "the worker's end")
    assert leaving.wait(0) == 0, leaving.tail()
    service.workers.remove(leaving)
    service.add_worker()
    await seen.until_idle()
    assert_alive(other, *service.web)


async def test_a_job_pulled_and_not_accepted_is_served_by_another(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    doomed = service.workers[0]
    # Right after a start of Redis nobody is taken for dead.
    await until(lambda: uptime(seen) >= RESTART_GRACE_SECONDS, RESTART_GRACE_SECONDS + 2, "an older Redis")
    text = "busy with this " * 30
    left, others = await streams_by_worker(client, seen, doomed, script("busy with this ", repeat=30, step_ms=50))
    for stream in left:
        await stream.leave()
    await until(lambda: seen.running() == SLOTS, 5, "room at one worker alone")
    engine = seen.worker(doomed.pid).engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    orphans = [asyncio.create_task(client.post("/generate", json=body(script(f"orphan {n}")))) for n in range(2)]
    await until(lambda: seen.worker(doomed.pid).waiting == 2, 5, "jobs pulled and not accepted")
    worker = seen.worker(doomed.pid).id
    doomed.kill()
    assert [answer.json() for answer in await asyncio.gather(*orphans)] == [
        {"generated_text": f"orphan {n}"} for n in range(2)
    ]
    assert await asyncio.gather(*(stream.finish() for stream in others)) == [text] * SLOTS
    keys = Keys()
    assert not seen.redis.exists(keys.unacked(worker), keys.unacked_index(worker))
    await seen.until_idle()


def uptime(seen: Observer) -> int:
    return int(cast("dict[str, int]", seen.redis.info("server"))["uptime_in_seconds"])
