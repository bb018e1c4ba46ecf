"""An engine that fails, dies or hangs takes down what it must and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import body, generate, open_stream, script, start_stream
from tests.acceptance.observation import Observer, assert_alive, in_flight, until

SLOTS = 4
ENGINE_STALL = 4.0
STREAM_STALL = 1.0


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": str(SLOTS),
        "TGQ_HEARTBEAT_SECONDS": "0.1",
        "TGQ_ENGINE_STALL_TIMEOUT": str(ENGINE_STALL),
    }
    service = LocalService(settings)
    with service:
        # A second web node, less patient than the engine's own watch.
        service.add_web({"TGQ_STALL_TIMEOUT": str(STREAM_STALL)})
        service.wait_ready()
        yield service


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
    await seen.until_idle()
    assert seen.workers()[0].engine_pid == engine


async def test_a_killed_engine_is_started_again(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    (before,) = seen.workers()
    company = [await start_stream(client, script("on and on ", repeat=900, step_ms=20)) for _ in range(SLOTS - 1)]
    killer = asyncio.create_task(
        client.post("/generate", json=body(script("one two three four five", kill_at=3, first_ms=1000)))
    )
    await until(lambda: seen.running() == SLOTS, 5, "a full engine")
    queued = [asyncio.create_task(generate(client, script(f"queued {number}"))) for number in range(6)]

    answer = await killer
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "generation"
    for stream in company:
        assert await stream.finish() == ""
        assert stream.stream.error is not None
        assert stream.stream.error["error_type"] == "generation"
    assert await asyncio.gather(*queued) == [f"queued {number}" for number in range(6)]
    await seen.until_idle()
    (after,) = seen.workers()
    assert after.id == before.id
    assert after.engine_pid not in (None, before.engine_pid)
    assert after.state == "ready"
    assert (await client.get("/health")).status_code == 200
    assert await in_flight(client, *service.urls) == 0


async def test_a_hanging_engine_is_replaced(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> None:
    """Both watches: the web node's over the silent stream, the worker's over the engine's steps."""
    (before,) = seen.workers()
    patient, impatient = service.urls
    companion = await start_stream(client, script("on and on ", repeat=900, step_ms=20), url=patient)
    hangs = body(script("one two three", hang_at=2, step_ms=200))
    started = time.monotonic()
    hanging = asyncio.create_task(client.post(f"{impatient}/generate", json=hangs))

    answer = await hanging
    assert answer.status_code == 500
    assert answer.json() == {"error": "The worker has gone silent", "error_type": "incomplete_generation"}
    assert time.monotonic() - started < STREAM_STALL + 3

    assert await companion.finish() == ""
    assert companion.stream.error is not None
    assert companion.stream.error["error_type"] == "generation"
    assert "finished no step" in companion.stream.error["error"]
    assert time.monotonic() - started < ENGINE_STALL + 5

    assert await generate(client, script("New engine, new luck.")) == "New engine, new luck."
    await seen.until_idle()
    (after,) = seen.workers()
    assert after.id == before.id
    assert after.engine_pid not in (None, before.engine_pid)
    assert await in_flight(client, *service.urls) == 0
    assert_alive(*service.web, *service.workers)
