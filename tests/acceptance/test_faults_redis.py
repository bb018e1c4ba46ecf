"""Redis goes away and comes back: requests are refused in between, nothing has to be restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from ops.chaos.tcp_proxy import TcpProxy
from ops.embedded_redis import EmbeddedRedis
from ops.local_service import LocalService
from tests.acceptance.clients import body, generate, http_client, script, start_stream
from tests.acceptance.native import another_web_node
from tests.acceptance.observation import Observer, assert_alive, in_flight, named_processes, until

REFUSED_WITHIN = 8.0
"""One command's time and what a busy machine takes; whoever waited for Redis itself would wait for minutes."""
BACK_WITHIN = 30.0


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService({"MODEL_ID": "scripted", "TGQ_HEARTBEAT_SECONDS": "0.2"}) as running:
        yield running


@pytest.fixture
def server(service: LocalService) -> EmbeddedRedis:
    assert service.redis is not None
    return service.redis


def go_away(server: EmbeddedRedis, how: str) -> None:
    if how == "kill":
        server.kill()
    else:
        server.freeze()


def come_back(server: EmbeddedRedis, how: str) -> None:
    if how == "kill":
        server.start()
    else:
        server.thaw()


async def is_away(client: httpx.AsyncClient) -> None:
    """All generation routes refuse in time, from the first request on and many at a time; what needs no Redis goes on."""
    await asyncio.gather(*(refused(client, path) for path in ("/generate", "/generate_stream", "/")))
    await until(lambda: unhealthy(client), REFUSED_WITHIN, "bad health")
    await asyncio.gather(
        *(refused(client, path) for path in ("/generate", "/generate_stream", "/") for _ in range(10)),
        refused(client, "/", stream=True),
        *(answers(client, path) for path in ("/info", "/metrics")),
    )
    assert await unhealthy(client)


async def unhealthy(client: httpx.AsyncClient) -> bool:
    """Whether all the health routes say so, in time."""
    started = time.monotonic()
    health = await asyncio.gather(*(client.get(path) for path in ("/health", "/ping", "/")))
    assert time.monotonic() - started < REFUSED_WITHIN
    return all(
        answer.status_code == 503
        and answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}
        and int(answer.headers["retry-after"]) >= 1
        for answer in health
    )


async def refused(client: httpx.AsyncClient, path: str, *, stream: bool = False) -> None:
    started = time.monotonic()
    answer = await client.post(path, json={**body("anything"), "stream": stream} if path == "/" else body("anything"))
    assert answer.status_code == 503, (path, answer.text)
    assert time.monotonic() - started < REFUSED_WITHIN, path
    assert answer.json()["error_type"] == "unavailable"
    assert int(answer.headers["retry-after"]) >= 1


async def answers(client: httpx.AsyncClient, path: str) -> None:
    started = time.monotonic()
    assert (await client.get(path)).status_code == 200, path
    assert time.monotonic() - started < REFUSED_WITHIN, path


async def is_back(client: httpx.AsyncClient) -> None:
    async def healthy() -> bool:
        return (await client.get("/health")).status_code == 200

    await until(healthy, BACK_WITHIN, "health")
    for number in range(3):
        assert await generate(client, script(f"Back again {number}.")) == f"Back again {number}."


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_away_and_back(service: LocalService, server: EmbeddedRedis, client: httpx.AsyncClient, how: str) -> None:
    with Observer(service) as seen:
        processes = named_processes(service, seen)
    go_away(server, how)
    try:
        await is_away(client)
    finally:
        come_back(server, how)
    await is_back(client)
    assert_alive(*service.web, *service.workers)
    with Observer(service) as seen:
        await until(seen.workers, 20, "the worker's heartbeat")
        assert named_processes(service, seen) == processes
        await seen.until_idle(20)
    assert await in_flight(client) == 0


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_stream_outlasts_it(
    service: LocalService, server: EmbeddedRedis, client: httpx.AsyncClient, how: str
) -> None:
    """The engine goes on meanwhile; what nobody heard is told afterwards, in order and once."""
    text = "This goes on whatever happens 🙂 " * 12
    stream = await start_stream(client, script(text, step_ms=20))
    heard = asyncio.create_task(stream.finish())
    go_away(server, how)
    await refused(client, "/generate")
    come_back(server, how)
    async with asyncio.timeout(30):
        assert await heard == text
    assert stream.stream.text == text
    await is_back(client)
    with Observer(service) as seen:
        await seen.until_idle(20)
    assert await in_flight(client) == 0


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_client_that_leaves_meanwhile_is_not_forgotten(
    service: LocalService, server: EmbeddedRedis, client: httpx.AsyncClient, how: str
) -> None:
    stream = await start_stream(client, script("for nobody ", repeat=900, step_ms=20))
    go_away(server, how)
    await stream.leave()
    await refused(client, "/generate")
    come_back(server, how)
    with Observer(service) as seen:
        await until(lambda: len(seen.workers()) == 1, 20, "the worker's heartbeat")
        await seen.until_idle(20)
    await is_back(client)
    assert await in_flight(client) == 0


async def test_a_full_redis_takes_nothing_new_and_what_runs_goes_on(
    service: LocalService, server: EmbeddedRedis, client: httpx.AsyncClient
) -> None:
    text = "There is room for this one. " * 12
    stream = await start_stream(client, script(text, step_ms=20))
    with Observer(service) as seen:
        seen.redis.config_set("maxmemory", "1")
        try:
            await asyncio.gather(*(refused(client, path) for path in ("/generate", "/generate_stream", "/")))
            async with asyncio.timeout(30):
                assert await stream.finish() == text
        finally:
            seen.redis.config_set("maxmemory", "0")
        await is_back(client)
        await seen.until_idle(20)
    assert_alive(*service.web, *service.workers)
    assert await in_flight(client) == 0


async def test_a_web_node_that_is_cut_off(service: LocalService, server: EmbeddedRedis) -> None:
    """Half-open connections: nothing is refused and nothing is answered."""
    text = "Heard in the end, and once. " * 12
    with (
        TcpProxy(server.port or 0) as wire,
        another_web_node(service, {"REDIS_URL": wire.url}) as (url, part),
    ):
        async with http_client(url) as client:
            await is_back(client)
            stream = await start_stream(client, script(text, step_ms=20))
            wire.hole = True
            try:
                await is_away(client)
            finally:
                wire.hole = False
            async with asyncio.timeout(30):
                assert await stream.finish() == text
            await is_back(client)
            assert await in_flight(client) == 0
        assert_alive(part, *service.workers)
