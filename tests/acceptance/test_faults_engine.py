"""An engine that fails, dies or hangs takes down what it must and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from common.wire import WorkerRecord
from ops.local_service import LocalService
from tests.acceptance.clients import body, generate, open_stream, script, start_stream
from tests.acceptance.observation import Observer, assert_alive, in_flight, until

SLOTS = 4
ENGINE_STALL = 3.0


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": str(SLOTS),
        "TGQ_HEARTBEAT_SECONDS": "0.1",
        "TGQ_ENGINE_STALL_TIMEOUT": str(ENGINE_STALL),
        "TGQ_ENGINE_THREADS": "1",
        "TGQ_MAX_ATTEMPTS": "2",
    }
    with LocalService(settings) as service:
        yield service


async def ready_again(seen: Observer) -> WorkerRecord:
    await until(lambda: seen.workers()[0].state == "ready", 30, "an engine")
    return seen.workers()[0]


async def test_a_request_at_fault_fails_alone(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> None:
    engine = seen.workers()[0].engine_pid
    company = await start_stream(client, script("in good company ", repeat=20, step_ms=20))
    error = {"error": "Request failed during generation: the script raises at token 3", "error_type": "generation"}

    answer = await client.post("/generate", json=body(script("one two three four five", raise_at=3)))
    assert (answer.status_code, answer.json()) == (424, error)

    async with open_stream(client, script("one two three four five", raise_at=3)) as stream:
        assert await stream.finish() == ""
    assert stream.text
    assert "one two three four five".startswith(stream.text)
    assert stream.error == error

    answer = await client.post("/generate_stream", json=body(script("nothing", raise_at=0)))
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "generation"

    assert await company.finish() == "in good company " * 20
    await seen.until_idle(20)
    assert seen.workers()[0].engine_pid == engine


async def test_a_poisonous_request_ends_after_its_attempts_and_takes_no_other_along(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    (before,) = seen.workers()
    company = [await start_stream(client, script("on and on ", repeat=30, step_ms=20)) for _ in range(SLOTS - 1)]
    poison = asyncio.create_task(
        client.post("/generate", json=body(script("one two three four five", kill_at=3, first_ms=500)))
    )
    # What Redis knows at once, as the engine is soon gone.
    await until(lambda: seen.unacknowledged() == SLOTS or poison.done(), 20, "a full worker")
    queued = [asyncio.create_task(generate(client, script(f"queued {number}"))) for number in range(6)]

    answer = await poison
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "generation"
    assert "given up after 2 lost attempts" in answer.json()["error"]
    for stream in company:
        assert await stream.finish() == "on and on " * 30, stream.stream.error
    assert await asyncio.gather(*queued) == [f"queued {number}" for number in range(6)]
    await seen.until_idle(20)
    await until(lambda: seen.workers()[0].engine_pid not in (None, before.engine_pid), 30, "another engine")
    assert (await ready_again(seen)).id == before.id
    assert (await client.get("/health")).status_code == 200
    assert await in_flight(client, *service.urls) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_streams_outlast_the_engine(
    service: LocalService, client: httpx.AsyncClient, seen: Observer, how: signal.Signals
) -> None:
    engine = (await ready_again(seen)).engine_pid
    assert engine is not None
    streams = [await start_stream(client, script("on and on ", repeat=20, step_ms=20)) for _ in range(SLOTS)]
    os.kill(engine, how)
    async with asyncio.timeout(60):
        assert [await stream.finish() for stream in streams] == ["on and on " * 20] * SLOTS
    await seen.until_idle(20)
    await until(lambda: seen.workers()[0].engine_pid not in (None, engine), 30, "another engine")
    await ready_again(seen)
    assert_alive(*service.web, *service.workers)


async def test_a_hanging_engine_is_replaced(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> None:
    """Its own watch notices steps that never end."""
    before = await ready_again(seen)
    companion = await start_stream(client, script("on and on ", repeat=40, step_ms=20))
    answer = await client.post("/generate", json=body(script("one two three", hang_at=2, step_ms=100)))
    assert answer.status_code == 424
    assert "finished no step" in answer.json()["error"]
    assert await companion.finish() == "on and on " * 40, companion.stream.error
    assert await generate(client, script("New engine, new luck.")) == "New engine, new luck."
    await seen.until_idle(20)
    await until(lambda: seen.workers()[0].engine_pid not in (None, before.engine_pid), 30, "another engine")
    assert (await ready_again(seen)).id == before.id
    assert await in_flight(client, *service.urls) == 0
    assert_alive(*service.web, *service.workers)
