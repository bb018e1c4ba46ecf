"""Clients that leave, in every phase, and clients that read slowly."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
import redis

from common.keys import Keys
from common.wire import Accepted, Job, Token, Tokens
from tests.integration.client.fake_worker import FakeWorker, accept_and_hang, until
from tests.integration.web.serving import WebNode, eventually, saying, worker

KEYS = Keys()


async def connect(node: WebNode, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = node.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"inputs": "x", "parameters": {"max_new_tokens": 200}}).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return reader, writer


async def metric(client: httpx.AsyncClient, name: str) -> float:
    for line in (await client.get("/metrics")).text.splitlines():
        if line.rpartition(" ")[0] == name:
            return float(line.rpartition(" ")[2])
    return 0.0


async def idle(client: httpx.AsyncClient) -> bool:
    return await metric(client, "tgq_requests_in_flight") == 0


async def cancelled_before(client: httpx.AsyncClient, *phases: str) -> float:
    """Those of earlier tests, once none is under way."""
    await eventually(lambda: idle(client))
    return await cancelled(client, *phases)


async def cancelled(client: httpx.AsyncClient, *phases: str) -> float:
    return sum([await metric(client, f'tgq_cancelled_total{{phase="{phase}"}}') for phase in phases])


def permits(url: str) -> int:
    with redis.Redis.from_url(url) as connection:
        return sum(int(count) for count in connection.hvals(KEYS.admission))


def queued(url: str) -> int:
    with redis.Redis.from_url(url) as connection:
        return int(connection.llen(KEYS.queue("scripted", "interactive")))


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_leaving_while_queued(shared_node: WebNode, client: httpx.AsyncClient, redis_url: str, path: str) -> None:
    before = await cancelled_before(client, "queue")
    _, writer = await connect(shared_node, path)
    await until(lambda: queued(redis_url) == 1)
    writer.close()
    await until(lambda: queued(redis_url) == 0 and permits(redis_url) == 0)
    assert await cancelled(client, "queue") == before + 1
    assert await metric(client, "tgq_requests_in_flight") == 0


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_leaving_in_prefill(shared_node: WebNode, client: httpx.AsyncClient, redis_url: str, path: str) -> None:
    before = await cancelled_before(client, "queue", "prefill")
    async with worker(redis_url, accept_and_hang) as fake:
        _, writer = await connect(shared_node, path)
        await until(lambda: fake.running == 1)
        writer.close()
        await until(lambda: len(fake.cancelled) == 1 and permits(redis_url) == 0)
    # Whether the web node had heard of the worker by then is chance.
    assert await cancelled(client, "queue", "prefill") == before + 1


async def endless(fake: FakeWorker, job: Job) -> None:
    await fake.emit(job, Accepted(fake.id))
    for index in range(1_000_000):
        await fake.emit(job, Tokens(index, [Token(65, "A" * 20, -1.0, False)]))
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_leaving_while_tokens_come(
    shared_node: WebNode, client: httpx.AsyncClient, redis_url: str, path: str
) -> None:
    before = await cancelled_before(client, "queue", "prefill", "decode")
    async with worker(redis_url, endless) as fake:
        reader, writer = await connect(shared_node, path)
        if path == "/generate_stream":
            await reader.readuntil(b"data: ")
        else:
            await until(lambda: any(len(frames) > 5 for frames in fake.frames.values()))
        writer.close()
        await until(lambda: len(fake.cancelled) == 1 and permits(redis_url) == 0)
    assert await cancelled(client, "queue", "prefill", "decode") == before + 1
    assert await metric(client, "tgq_streams") == 0


async def test_leaving_in_the_middle_of_the_body(
    shared_node: WebNode, client: httpx.AsyncClient, redis_url: str
) -> None:
    host, port = shared_node.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
    await writer.drain()
    writer.close()
    async with worker(redis_url, saying("ok")):
        assert (await client.post("/generate", json={"inputs": "x"})).status_code == 200
    assert permits(redis_url) == 0


async def test_a_client_that_does_not_read_slows_nobody_down(
    shared_node: WebNode, client: httpx.AsyncClient, redis_url: str
) -> None:
    """Its frames wait in its own queue, which has a limit; then its job is cancelled."""

    async def flood_or_answer(fake: FakeWorker, job: Job) -> None:
        if job.parameters.max_new_tokens != 200:
            await saying("quick")(fake, job)
            return
        await fake.accept(job)
        for index in range(1_000_000):
            await fake.emit(job, Tokens(index, [Token(65, "A" * 4000, -1.0, False)]))
            await asyncio.sleep(0.001)

    async with worker(redis_url, flood_or_answer) as fake:
        _, writer = await connect(shared_node, "/generate_stream")
        await until(lambda: any(len(frames) > 100 for frames in fake.frames.values()))
        quick = await client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 10}})
        assert quick.json()["generated_text"] == "quick"
        await until(lambda: len(fake.cancelled) == 1, 60.0)
        writer.close()
        await until(lambda: permits(redis_url) == 0)
