"""One of two web nodes ends, asked to or killed: nobody at the other one notices."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from ops.local_service import LocalService
from ops.process_figures import children
from tests.acceptance.clients import LongStream, body, generate, http_client, script, start_stream
from tests.acceptance.observation import Observer, assert_alive, in_flight, until

SLOTS = 2
LIMIT = 12
LEASE = 2.0


@pytest.fixture(scope="module")
def two_of_each() -> Iterator[LocalService]:
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": str(SLOTS),
        "MAX_CONCURRENT_REQUESTS": str(LIMIT),
        "TGQ_LEASE_SECONDS": str(LEASE),
        "TGQ_HEARTBEAT_SECONDS": "0.1",
    }
    with LocalService(settings, web=2, workers=2) as running:
        yield running


@pytest.fixture
def service(two_of_each: LocalService) -> LocalService:
    """Two nodes, of which the test may end the first."""
    if not two_of_each.web[0].alive:
        del two_of_each.web[0], two_of_each.urls[0]
        two_of_each.add_web()
        two_of_each.wait_ready()
    return two_of_each


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with http_client() as client:
        yield client


def said(name: str) -> str:
    return f"{name} says this again "


async def streams(client: httpx.AsyncClient, url: str, name: str, count: int, **script_fields: int) -> list[LongStream]:
    prompt = script(said(name), **script_fields)
    return await asyncio.gather(*(start_stream(client, prompt, url=url) for _ in range(count)))


async def test_a_node_told_to_stop_finishes_its_requests(service: LocalService, client: httpx.AsyncClient) -> None:
    node, url = service.web[0], service.url
    slots = SLOTS * len(service.workers)
    with Observer(service) as seen:
        # Longer than all takes until the port is closed.
        running = await streams(client, url, "leaving", slots - 1, repeat=15, step_ms=50)
        whole = asyncio.create_task(generate(client, script(said("whole"), repeat=15, step_ms=50), url=url))
        await until(lambda: seen.running() == slots, 20, "full engines")
        queued = [asyncio.create_task(generate(client, script(said("queued")), url=url)) for _ in range(3)]
        await until(lambda: seen.queued() == len(queued), 20, "the queue")
        node.terminate()
        await until(lambda: refuses_connections(url), 20, "the closed port")
        assert await asyncio.gather(*(stream.finish() for stream in running)) == [said("leaving") * 15] * len(running)
        assert await whole == said("whole") * 15
        assert await asyncio.gather(*queued) == [said("queued")] * len(queued)
        await until(lambda: not node.alive, 30, "the node's end")
        assert node.wait(0) == 0, node.tail()
        await until(lambda: len(seen.reply_channels()) == 1, 20, "one reply channel")
        await seen.until_idle(20)
    assert await generate(client, script("Still here."), url=service.urls[1]) == "Still here."


async def refuses_connections(url: str) -> bool:
    async with http_client() as client:
        try:
            await client.get(f"{url}/ping")
        except httpx.TransportError:
            return True
    return False


async def test_a_killed_process_is_replaced_and_leaves_nothing(
    service: LocalService, client: httpx.AsyncClient
) -> None:
    """The process that serves, below the node's master."""
    url = service.url
    (doomed,) = children(service.web[0].pid)
    with Observer(service) as seen:
        (lost,) = await streams(client, url, "lost", 1, repeat=500, step_ms=20)
        os.kill(doomed, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await lost.finish()
        await until(lambda: healthy(url), 60, "another process")
        assert children(service.web[0].pid) != [doomed]
        assert await generate(client, script("In its place."), url=url) == "In its place."
        await seen.until_idle(30)
        await until(lambda: len(seen.reply_channels()) == 2, 20, "two reply channels")
    assert await in_flight(client, url) == 0


async def healthy(url: str) -> bool:
    async with http_client() as client:
        try:
            return (await client.get(f"{url}/health")).status_code == 200
        except httpx.TransportError:
            return False


async def test_a_killed_nodes_permits_are_free_and_its_jobs_stop(
    service: LocalService, client: httpx.AsyncClient
) -> None:
    doomed, other = service.urls
    slots = SLOTS * len(service.workers)
    with Observer(service) as seen:
        begun = time.monotonic()
        survivors = await streams(client, other, "survivor", slots // 2, repeat=500, step_ms=50)
        lost = await streams(client, doomed, "lost", slots // 2, repeat=500, step_ms=20)
        endless = body(script(said("queued"), repeat=500, step_ms=20), 3000)
        queued = [asyncio.create_task(client.post(f"{doomed}/generate", json=endless)) for _ in range(LIMIT - slots)]
        await until(lambda: (seen.running(), seen.queued()) == (slots, LIMIT - slots), 20, "full engines and a queue")
        assert (await client.post(f"{other}/generate", json=body("one too many"))).status_code == 429

        service.web[0].kill()
        await until(lambda: seen.permits() == slots // 2, LEASE + 10, "the dead node's permits")
        served = asyncio.create_task(generate(client, script("In their place."), url=other))
        await until(lambda: seen.running() <= slots // 2 + 1, 20, "the end of the jobs that ran")
        await until(
            lambda: seen.queued() + seen.pulled() == 0 and seen.running() <= slots // 2 + 1, 20, "an empty queue"
        )
        assert await served == "In their place."
        await until(lambda: seen.running() == slots // 2, 20, "the survivors' jobs alone")

        for stream in survivors:
            # More than was said before all this.
            await stream.stream.hear(int((time.monotonic() - begun) / 0.05) + 10)
            assert (said("survivor") * 500).startswith(stream.stream.text)
            await stream.leave()
        for stream in lost:
            with pytest.raises(httpx.TransportError):
                await stream.finish()
        assert all(
            isinstance(answer, httpx.TransportError) for answer in await asyncio.gather(*queued, return_exceptions=True)
        )
        await seen.until_idle(20)
        await until(lambda: len(seen.reply_channels()) == 1, 20, "one reply channel")
        assert await in_flight(client, other) == 0
        assert_alive(*service.workers, service.web[1])
