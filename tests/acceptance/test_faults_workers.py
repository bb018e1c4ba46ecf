"""One of two workers ends, asked to or killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import httpx
import pytest

from common.keys import Keys
from common.reaper import RESTART_GRACE_SECONDS
from ops.local_service import LocalService, Part
from tests.acceptance.clients import LongStream, body, generate, leave, script, start_stream
from tests.acceptance.observation import Observer, assert_alive, in_flight, until
from tests.acceptance.pair import DEAD_AFTER, SLOTS

HANDED_OVER_SECONDS = 20.0
TEXT = "again and again "
ENDLESS = script(TEXT, repeat=900, step_ms=50)
"""Goes on for two minutes, which is longer than any test takes: its clients leave when all is seen."""


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
        await until(partial(runs, seen, total + 1), 20, "the stream in an engine")
        mine = streams[0] if seen.worker(first.pid).running > before else streams[1]
        (mine if len(mine) < slots else spare).append(stream)
    for stream in spare:
        await stream.leave()
    await until(lambda: seen.running() == 2 * slots, 20, "the streams alone")
    return streams


def runs(seen: Observer, count: int) -> bool:
    return seen.running() == count


class Listeners:
    """They take whatever comes of endless streams, at once."""

    def __init__(self, streams: Sequence[LongStream]) -> None:
        self._streams = streams
        self._tasks = [asyncio.create_task(stream.finish()) for stream in streams]

    async def hear_more(self) -> None:
        """Every stream goes on from now on, and nothing was left out or said twice."""
        heard = self._heard()
        # More than may have been on its way.
        await until(
            lambda: all(now > before + 3 * len(TEXT) for now, before in zip(self._heard(), heard, strict=True)),
            30,
            "more of every stream",
        )
        assert all((TEXT * 900).startswith(stream.stream.text) for stream in self._streams)

    async def leave(self) -> None:
        for task in self._tasks:
            await leave(task)

    def _heard(self) -> list[int]:
        return [len(stream.stream.text) for stream in self._streams]


async def test_the_streams_of_a_killed_worker_go_on_at_another(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    doomed, other = service.workers
    lefts, others = await streams_by_worker(client, seen, doomed, ENDLESS, 1)
    listeners = Listeners([*lefts, *others])
    engine = seen.worker(doomed.pid).engine_pid
    doomed.kill()
    await until(lambda: seen.worker(other.pid).running == 2, 30, "both streams at the other")
    await listeners.hear_more()
    await listeners.leave()
    await until(lambda: not Path(f"/proc/{engine}").exists(), 20, "the end of its engine")
    assert await generate(client, script("Served by the other.")) == "Served by the other."
    await seen.until_idle(20)
    assert await in_flight(client) == 0
    assert_alive(other, *service.web)


async def test_a_frozen_worker_loses_its_streams_and_may_come_back(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    frozen, other = service.workers
    lefts, others = await streams_by_worker(client, seen, frozen, ENDLESS, 1)
    listeners = Listeners([*lefts, *others])
    engine = seen.worker(frozen.pid).engine_pid
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        await until(lambda: seen.worker(other.pid).running == 2, DEAD_AFTER + 20, "both streams at the other")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await until(lambda: len(seen.workers()) == 2, 20, "the worker's return")
    await until(lambda: seen.worker(frozen.pid).running == 0, 20, "the end of the request nobody waits for there")
    await listeners.hear_more()
    await listeners.leave()
    assert seen.worker(frozen.pid).engine_pid == engine
    await seen.until_idle(20)
    lefts, others = await streams_by_worker(client, seen, frozen, ENDLESS, 1)
    listeners = Listeners([*lefts, *others])
    await listeners.hear_more()
    await listeners.leave()
    await seen.until_idle(20)
    assert_alive(frozen, other, *service.web)


async def test_a_worker_told_to_stop_hands_its_streams_over(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    leaving, other = service.workers
    lefts, others = await streams_by_worker(client, seen, leaving, ENDLESS, 1)
    listeners = Listeners([*lefts, *others])
    leaving.terminate()
    await until(lambda: seen.worker(other.pid).running == 2, HANDED_OVER_SECONDS, "both streams at the other")
    await until(lambda: not leaving.alive, HANDED_OVER_SECONDS, "the worker's end")
    assert leaving.wait(0) == 0, leaving.tail()
    await until(lambda: len(seen.workers()) == 1, 20, "the registry without it")
    await listeners.hear_more()
    await listeners.leave()
    await seen.until_idle(20)
    assert_alive(other, *service.web)


async def test_a_worker_told_to_finish_keeps_its_streams(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    """Full workers, and a queue: what runs ends where it is, what waits is served by the other one."""
    service.workers[0].terminate()
    assert service.workers.pop(0).wait(30) == 0
    leaving = service.add_worker({"TGQ_ON_SIGTERM": "finish"})
    service.wait_ready()
    other = service.workers[0]
    text = "to the end " * 40
    prompt = script("to the end ", repeat=40, step_ms=50)
    # All at once: they must still run when all the rest has come.
    streams = await asyncio.gather(*(start_stream(client, prompt) for _ in range(2 * SLOTS)))
    queued = [asyncio.create_task(generate(client, script(f"queued {number}"))) for number in range(4)]
    await until(lambda: seen.queued() == len(queued), 20, "the queue")
    leaving.terminate()
    await until(lambda: seen.worker(leaving.pid).state == "draining", 20, "the notice")
    assert seen.worker(leaving.pid).running == SLOTS
    assert await asyncio.gather(*(stream.finish() for stream in streams)) == [text] * (2 * SLOTS)
    assert await asyncio.gather(*queued) == [f"queued {number}" for number in range(4)]
    await until(lambda: not leaving.alive, 30, "the worker's end")
    assert leaving.wait(0) == 0, leaving.tail()
    service.workers.remove(leaving)
    service.add_worker()
    await seen.until_idle(20)
    assert_alive(other, *service.web)


async def test_a_job_pulled_and_not_accepted_is_served_by_another(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    doomed = service.workers[0]
    # Right after a start of Redis nobody is taken for dead.
    await until(lambda: uptime(seen) >= RESTART_GRACE_SECONDS, RESTART_GRACE_SECONDS + 20, "an older Redis")
    left, others = await streams_by_worker(client, seen, doomed, ENDLESS)
    listeners = Listeners(others)
    for stream in left:
        await stream.leave()
    await until(lambda: seen.running() == SLOTS, 20, "room at one worker alone")
    engine = seen.worker(doomed.pid).engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGSTOP)
    orphans = [asyncio.create_task(client.post("/generate", json=body(script(f"orphan {n}")))) for n in range(2)]
    await until(lambda: seen.worker(doomed.pid).waiting == 2, 15, "jobs pulled and not accepted")
    worker = seen.worker(doomed.pid).id
    doomed.kill()
    await listeners.hear_more()
    await listeners.leave()  # which makes room
    assert [answer.json() for answer in await asyncio.gather(*orphans)] == [
        {"generated_text": f"orphan {n}"} for n in range(2)
    ]
    keys = Keys()
    await until(
        lambda: not seen.redis.exists(keys.unacked(worker), keys.unacked_index(worker)), 20, "nothing kept for the dead"
    )
    await seen.until_idle(20)


def uptime(seen: Observer) -> int:
    return int(cast("dict[str, int]", seen.redis.info("server"))["uptime_in_seconds"])
