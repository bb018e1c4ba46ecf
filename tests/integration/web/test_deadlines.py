"""Requests whose time is over: the caller's limit, the service's own, and what is seen of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from common.keys import Keys
from common.wire import Failed, Finish, Job, Token, Tokens
from ops.embedded_redis import EmbeddedRedis
from tests.event_streams import data_of
from tests.integration.client.fake_worker import FakeWorker, accept_and_hang, until
from tests.integration.web.serving import WebNode, events, eventually, saying, web_node, worker

KEYS = Keys()
REFUSED = ["", "0", "-1", "1e3", "inf", "nan", "soon", "86401", "1,5", "0x10", "9" * 20]


def nothing_held(url: str) -> bool:
    with redis.Redis.from_url(url) as connection:
        permits = sum(int(count) for count in connection.hvals(KEYS.admission))
        return permits == 0 and connection.llen(KEYS.queue("scripted", "interactive")) == 0


async def metric(client: httpx.AsyncClient, name: str) -> float:
    for line in (await client.get("/metrics")).text.splitlines():
        if line.rpartition(" ")[0] == name:
            return float(line.rpartition(" ")[2])
    return 0.0


async def exceeded(client: httpx.AsyncClient, reason: str) -> float:
    return await metric(client, f'tgq_deadline_exceeded_total{{reason="{reason}"}}')


def within(seconds: float) -> dict[str, str]:
    return {"x-request-timeout": str(seconds)}


@pytest.mark.parametrize("given", REFUSED)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_what_is_no_time_is_refused(client: httpx.AsyncClient, given: str, path: str) -> None:
    response = await client.post(path, json={"inputs": "x"}, headers={"x-request-timeout": given})
    assert response.status_code == 422
    assert "`x-request-timeout` must be a number of seconds above 0 and at most 86400" in response.json()["error"]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_g12_a_job_whose_time_is_over_in_the_queue_never_starts(
    shared_node: WebNode, client: httpx.AsyncClient, redis_url: str, path: str
) -> None:
    before = await exceeded(client, "total")
    headers = within(0.5) | {"x-request-id": f"late-{path[1:]}"}
    response = await client.post(path, json={"inputs": "x"}, headers=headers)
    error = {"error": "The request was not finished in time", "error_type": "timeout"}
    if response.status_code == 200:  # a stream that was kept alive has its status already
        assert path == "/generate_stream"
        assert events(response.text) == [error]
    else:
        assert response.status_code == 504
        assert response.json() == error
    await until(lambda: nothing_held(redis_url))
    async with worker(redis_url, saying("ok")) as fake:
        assert (await client.post("/generate", json={"inputs": "x"}, headers=within(30))).status_code == 200
        assert fake.taken == 1
    assert await exceeded(client, "total") == before + 1
    (line,) = [line for line in shared_node.log_lines() if line.get("request_id") == headers["x-request-id"]]
    assert (line["cause"], line["reason"], line["phase"]) == ("timeout", "total", "queue")


async def test_a_stream_whose_time_is_over_ends_with_an_error(client: httpx.AsyncClient, redis_url: str) -> None:
    async def begin_and_hang(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)]))
        await asyncio.Event().wait()

    async with worker(redis_url, begin_and_hang) as fake:
        response = await client.post("/generate_stream", json={"inputs": "x"}, headers=within(3.0))
        assert response.status_code == 200
        first, last = events(response.text)
        assert first["token"]["text"] == "A"
        assert last == {"error": "The request was not finished in time", "error_type": "timeout"}
        await until(lambda: len(fake.cancelled) == 1 and nothing_held(redis_url))


async def test_a_stream_that_is_gone_on_with_keeps_its_time(client: httpx.AsyncClient, redis_url: str) -> None:
    """However much later the second connection's own limit is."""

    async def begin_and_hang(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        if not job.generated_ids:
            await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)]))
        await asyncio.Event().wait()

    async with worker(redis_url, begin_and_hang) as fake:
        headers = {"x-tgq-resume": "true", "x-request-id": "kept-time"}
        async with client.stream("POST", "/generate_stream", json={"inputs": "x"}, headers=headers | within(3)) as part:
            await anext(part.aiter_raw())
        again = await client.post("/generate_stream", json={"inputs": "x"}, headers=headers | {"last-event-id": "1"})
        (error,) = [json.loads(data) for data in data_of(again.text, first=2)]
        assert error == {"error": "The request was not finished in time", "error_type": "timeout"}
        await until(lambda: len(fake.cancelled) > 0 and nothing_held(redis_url))


async def test_several_prompts_share_one_time(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, accept_and_hang) as fake:
        body = {"prompt": ["a", "b"], "max_tokens": 5}
        response = await client.post("/v1/completions", json=body, headers=within(0.5))
        assert response.status_code == 504
        assert response.json()["error"]["message"] == "The request was not finished in time"
        # Those that a worker has are cancelled, the others are out of the queue.
        await until(lambda: fake.running == 0 and nothing_held(redis_url))


async def test_waiting_for_another_call_s_answer_has_its_own_time(client: httpx.AsyncClient, redis_url: str) -> None:
    async def answer_later(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await fake.go.wait()
        await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)], Finish("length", 1, 0.01)))

    async with worker(redis_url, answer_later) as fake:
        key = {"idempotency-key": "one"}
        leading = asyncio.create_task(client.post("/generate", json={"inputs": "x"}, headers=key))
        await until(lambda: fake.running == 1)
        impatient = await client.post("/generate", json={"inputs": "x"}, headers=key | within(0.3))
        assert impatient.status_code == 504
        fake.go.set()
        assert (await leading).json() == {"generated_text": "A"}
        assert fake.taken == 1


async def test_the_age_of_the_queue_is_told(client: httpx.AsyncClient, redis_url: str) -> None:
    name = 'tgq_queue_oldest_seconds{model="scripted"}'
    assert await metric(client, name) == 0.0
    waiting = asyncio.create_task(client.post("/generate", json={"inputs": "x"}, headers=within(20)))

    async def grown() -> bool:
        return await metric(client, name) > 0.2

    await eventually(grown)
    async with worker(redis_url, saying("ok")):
        assert (await waiting).status_code == 200
    assert await metric(client, name) == 0.0


async def test_attempts_are_counted_by_cause(client: httpx.AsyncClient, redis_url: str) -> None:
    name = 'tgq_failovers_total{cause="worker_failed"}'
    before = await metric(client, name)

    async def fail_once(fake: FakeWorker, job: Job) -> None:
        if job.attempt == 1:
            await fake.accept(job)
            await fake.emit(job, Failed("generation", "broken", retryable=True))
        else:
            await saying("ok")(fake, job)

    async with worker(redis_url, fail_once):
        assert (await client.post("/generate", json={"inputs": "x"})).status_code == 200

    async def counted() -> bool:
        return await metric(client, name) == before + 1

    await eventually(counted)


@pytest.fixture(scope="module")
def strict_node(node_folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    with web_node(node_folder / "strict", redis_server.url, request_timeout=3.5, queue_timeout=2.5) as node:
        yield node


async def test_the_service_has_limits_of_its_own(strict_node: WebNode, redis_url: str) -> None:
    async with httpx.AsyncClient(base_url=strict_node.url, timeout=30) as http:
        waited = await http.post("/generate", json={"inputs": "x"}, headers=within(30))
        assert waited.status_code == 504
        assert waited.json()["error"] == "No worker took the request in time"
        async with worker(redis_url, accept_and_hang):
            cut = await http.post("/generate", json={"inputs": "x"}, headers=within(30))
        assert cut.status_code == 504
        assert cut.json()["error"] == "The request was not finished in time"
        assert [await exceeded(http, reason) for reason in ("queue_wait", "total")] == [1, 1]
        document = json.loads((await http.get("/openapi.json")).text)
        names = [header["$ref"].rpartition("/")[2] for header in document["paths"]["/generate"]["post"]["parameters"]]
        assert "x-request-timeout" in names
