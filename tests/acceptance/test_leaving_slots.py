"""A client that leaves gives its place in the engine back within a second, whatever its request was at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import LongStream, generate, http_client, leave, open_stream, script, start_stream
from tests.acceptance.observation import Observer, in_flight, read_metric, until

SLOTS = 2
"""Of each engine."""
SOON = 5.0
"""A second, and what a busy machine takes; nothing here ends by itself in less than 40."""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    settings = {"MODEL_ID": "scripted", "MAX_BATCH_SIZE": str(SLOTS), "TGQ_HEARTBEAT_SECONDS": "0.05"}
    with LocalService(settings, web=2, workers=2) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with http_client() as client:
        yield client


async def cancelled(client: httpx.AsyncClient, service: LocalService) -> float:
    return sum([await read_metric(client, "tgq_cancelled_total", url) for url in service.urls])


async def wants_an_answer(client: httpx.AsyncClient, url: str, prompt: str, streams: bool) -> str:
    if not streams:
        return await generate(client, prompt, url=url, max_new_tokens=3000)
    async with open_stream(client, prompt, url=url, max_new_tokens=3000) as stream:
        return await stream.finish()


@asynccontextmanager
async def all_slots_taken(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> AsyncIterator[None]:
    """Streams in every slot for as long as it takes; they must go on right, and are left."""
    count = SLOTS * len(service.workers)
    fillers: list[LongStream] = []
    for number in range(count):
        url = service.urls[number % len(service.urls)]
        fillers.append(await start_stream(client, script(f"filler {number} ", repeat=900, step_ms=20), url=url))
    await until(lambda: seen.running() == count, 20, "full engines")
    yield
    for number, filler in enumerate(fillers):
        await filler.stream.hear(20)
        assert (f"filler {number} " * 900).startswith(filler.stream.text)
        await filler.leave()
    await seen.until_idle(SOON)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "answer"])
async def test_while_queued(service: LocalService, client: httpx.AsyncClient, seen: Observer, streams: bool) -> None:
    engines = {record.engine_pid for record in seen.workers()}
    before = await cancelled(client, service)
    async with all_slots_taken(service, client, seen):
        permits = seen.permits()
        # Were it ever begun, its engine would die.
        prompt = script("never", kill_at=0)
        waiting = asyncio.create_task(wants_an_answer(client, service.url, prompt, streams))
        await until(lambda: seen.queued() == 1, 20, "the request in the queue")
        assert await read_metric(client, "tgi_queue_size", service.urls[-1]) == 1
        await leave(waiting)
        await until(lambda: seen.queued() == 0 and seen.permits() == permits, SOON, "its leaving the queue")
        assert seen.pulled() == 0
        assert await read_metric(client, "tgi_queue_size", service.urls[-1]) == 0
        assert await cancelled(client, service) == before + 1
    assert {record.engine_pid for record in seen.workers()} == engines
    assert await in_flight(client, *service.urls) == 0


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "answer"])
async def test_before_the_first_token(
    service: LocalService, client: httpx.AsyncClient, seen: Observer, streams: bool
) -> None:
    waiting = asyncio.create_task(wants_an_answer(client, service.url, script("late", first_ms=60_000), streams))
    await until(lambda: seen.running() == 1, 20, "the request in an engine")
    await leave(waiting)
    await until(lambda: seen.running() == 0 and seen.permits() == 0, SOON, "a free slot")
    await seen.until_idle(SOON)


async def test_while_streaming(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> None:
    before = await cancelled(client, service)
    url = service.urls[-1]
    stream = await start_stream(client, script("word ", repeat=2000, step_ms=20), url=url, events=3)
    await until(lambda: seen.running() == 1, 20, "the stream in an engine")
    await stream.leave()
    await until(lambda: seen.running() == 0 and seen.permits() == 0, SOON, "a free slot")
    await seen.until_idle(SOON)
    assert await cancelled(client, service) == before + 1
    assert await in_flight(client, *service.urls) == 0
    assert await read_metric(client, "tgq_streams", url) == 0


async def test_while_an_answer_is_written(service: LocalService, client: httpx.AsyncClient, seen: Observer) -> None:
    prompt = script("word ", repeat=2000, step_ms=20)
    waiting = asyncio.create_task(wants_an_answer(client, service.url, prompt, streams=False))
    tokens = seen.generated()
    await until(lambda: seen.generated() > tokens + 3, 20, "the first tokens")
    await leave(waiting)
    await until(lambda: seen.running() == 0 and seen.permits() == 0, SOON, "a free slot")
    await seen.until_idle(SOON)


async def test_g12_time_that_is_over_ends_what_runs_and_what_waits(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    """Behind full engines one request that waits; then one in every slot for longer than its time."""
    count = SLOTS * len(service.workers)

    async def ask(name: str, seconds: float) -> httpx.Response:
        body = {"inputs": script(name, repeat=1000, step_ms=40), "parameters": {"max_new_tokens": 3000}}
        return await client.post(f"{service.url}/generate", json=body, headers={"x-request-timeout": str(seconds)})

    async with all_slots_taken(service, client, seen):
        waiting = await ask("waits ", 0.5)
        assert seen.running() == count  # nobody made room for it
        await until(lambda: seen.queued() == 0, SOON, "an empty queue")
    await seen.until_heard()
    tokens = seen.generated()
    running = await asyncio.gather(*(ask("runs ", 1.5) for _ in range(count)))
    await seen.until_idle(SOON)
    await until(lambda: seen.generated() > tokens, 10, "word of what ran")
    for answer in (waiting, *running):
        assert answer.status_code == 504
        assert answer.json() == {"error": "The request was not finished in time", "error_type": "timeout"}
