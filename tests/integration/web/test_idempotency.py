"""Calls with an `Idempotency-Key`, over two nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.keys import Keys
from common.redis_clients import async_redis
from common.wire import Failed, Job
from ops.embedded_redis import EmbeddedRedis
from tests.contract.tgi import check_answer
from tests.integration.client.fake_worker import Behaviour, FakeWorker, settings_for, until
from tests.integration.web.serving import WebNode, failing_after, saying, web_node, worker

ASKED = {"inputs": "x", "parameters": {"details": True}}
GRACE = 1.5


def node_values(folder: Path) -> dict[str, Any]:
    keys = folder / "keys.toml"
    keys.write_text('keys = [{name = "a", secret = "a"}, {name = "b", secret = "b"}]')
    return {
        "api_keys_file": keys,
        "idempotency_grace": GRACE,
        "lease_seconds": 5.0,
        "max_concurrent_requests": 4,
    }


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[list[WebNode]]:
    folder = tmp_path_factory.mktemp("idempotency")
    values = node_values(folder)
    with web_node(folder, redis_server.url, **values) as one, web_node(folder, redis_server.url, **values) as other:
        yield [one, other]


@pytest.fixture
async def clients(nodes: list[WebNode], redis_url: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    one, other = (httpx.AsyncClient(base_url=node.url, timeout=30) for node in nodes)
    async with one, other:
        yield [one, other]


async def post(
    client: httpx.AsyncClient, key: str | None = "k", body: Any = None, *, path: str = "/generate", caller: str = "a"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {caller}"} | ({"idempotency-key": key} if key is not None else {})
    response = await client.post(path, json=ASKED if body is None else body, headers=headers)
    check_answer(response)
    return response


def waiting(behaviour: Behaviour) -> Behaviour:
    """Accepts, and goes on when the test says so."""

    async def behave(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await fake.go.wait()
        await behaviour(fake, job)

    return behave


def replayed(response: httpx.Response) -> bool:
    return "idempotent-replayed" in response.headers


async def _until_wanted(redis_url: str) -> None:
    """Until somebody waits for a call that another runs."""
    deadline = time.monotonic() + 30
    async with async_redis(settings_for(redis_url)) as client:
        while True:
            names = [name async for name in client.scan_iter("tgq:idempotency:*")]
            if names and await client.hexists(names[0], "wanted_until"):
                return
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


async def test_a_repeated_call_gets_the_same_answer_from_any_node(
    clients: list[httpx.AsyncClient], nodes: list[WebNode], redis_url: str
) -> None:
    async with worker(redis_url, saying("once")) as fake:
        first = await post(clients[0])
        again = [await post(client) for client in clients]
        assert len(fake.jobs) == 1
        assert (await post(clients[0], "other")).status_code == 200
        assert (await post(clients[0], "k", caller="b")).status_code == 200
        assert (await post(clients[0], None)).status_code == 200
        assert len(fake.jobs) == 4
    assert first.json()["generated_text"] == "once"
    assert not replayed(first)
    for response in again:
        assert replayed(response)
        assert response.content == first.content
        assert response.headers["x-generated-tokens"] == first.headers["x-generated-tokens"]
        assert response.headers["x-request-id"] != first.headers["x-request-id"]
    await until(lambda: "replayed" in [line.get("cause") for line in nodes[1].log_lines()])


async def test_the_key_stands_for_one_request(clients: list[httpx.AsyncClient], redis_url: str) -> None:
    async with worker(redis_url, saying("x")) as fake:
        assert (await post(clients[0])).status_code == 200
        for client, body, path in ((clients[0], {"inputs": "y"}, "/generate"), (clients[1], ASKED, "/")):
            refused = await post(client, body=body, path=path)
            assert refused.status_code == 422
            assert "`idempotency-key` was used for another request" in refused.json()["error"]
        assert len(fake.jobs) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é".encode().decode("latin-1")])
async def test_keys_that_are_none(clients: list[httpx.AsyncClient], key: str) -> None:
    headers = {b"authorization": b"Bearer a", b"idempotency-key": key.encode("latin-1")}
    response = await clients[0].post("/generate", json=ASKED, headers=headers)
    assert response.status_code == 422
    assert "`idempotency-key` must have 1 to 255 visible ASCII characters" in response.json()["error"]


async def test_calls_at_once_wait_for_the_one_that_runs(clients: list[httpx.AsyncClient], redis_url: str) -> None:
    async with worker(redis_url, waiting(saying("once"))) as fake:
        calls = [asyncio.create_task(post(clients[i % 2])) for i in range(10)]
        await until(lambda: fake.running == 1)
        await _until_wanted(redis_url)
        async with async_redis(settings_for(redis_url)) as client:
            # Those that wait take no permit (there are four).
            (name,) = [key async for key in client.scan_iter("tgq:idempotency:*")]
            assert sum(map(int, await client.hvals(Keys().admission))) == 1
            # The lease is renewed while the call runs.
            deadline = time.monotonic() + 30
            left = await client.pttl(name)
            while (now := await client.pttl(name)) <= left:
                assert 0 < now <= 5000
                assert time.monotonic() < deadline
                left = now
                await asyncio.sleep(0.05)
            assert now <= 5000
            fake.go.set()
            answers = await asyncio.gather(*calls)
            assert 590_000 < await client.pttl(name) <= 600_000
            await client.delete(name)
        assert len(fake.jobs) == 1
    assert {answer.content for answer in answers} == {answers[0].content}
    assert sorted(map(replayed, answers)) == [False] + [True] * 9


async def test_failures_are_not_remembered(clients: list[httpx.AsyncClient], redis_url: str) -> None:
    async with worker(redis_url, failing_after(1)) as fake:
        failed = [await post(client) for client in clients]
        assert [response.status_code for response in failed] == [424, 424]
        assert len(fake.jobs) == 2
        assert (await post(clients[0], body={"inputs": ""})).status_code == 422
    async with worker(redis_url, saying("x")):
        assert not replayed(response := await post(clients[1])), response.text
        assert response.status_code == 200


async def test_one_that_waits_runs_the_call_itself_when_the_first_fails(
    clients: list[httpx.AsyncClient], redis_url: str
) -> None:
    async def fail_once(fake: FakeWorker, job: Job) -> None:
        if len(fake.jobs) > 1:
            await saying("second")(fake, job)
            return
        await fake.accept(job)
        await fake.go.wait()
        await fake.emit(job, Failed("generation", "broken on purpose"))

    async with worker(redis_url, fail_once) as fake:
        first = asyncio.create_task(post(clients[0]))
        await until(lambda: fake.running == 1)
        second = asyncio.create_task(post(clients[1]))
        await _until_wanted(redis_url)
        fake.go.set()
        assert (await first).status_code == 424
        assert (await second).json()["generated_text"] == "second"


async def test_the_first_client_may_leave_while_another_waits(
    clients: list[httpx.AsyncClient], nodes: list[WebNode], redis_url: str
) -> None:
    async with worker(redis_url, waiting(saying("kept"))) as fake:
        first = asyncio.create_task(post(clients[0]))
        await until(lambda: fake.running == 1)
        second = asyncio.create_task(post(clients[1]))
        await _until_wanted(redis_url)
        first.cancel()
        left = time.monotonic()
        while time.monotonic() - left < GRACE + 1:
            assert not second.done()
            await asyncio.sleep(0.05)
        assert fake.cancelled == []
        fake.go.set()
        answer = await second
        assert (answer.json()["generated_text"], replayed(answer)) == ("kept", True)
        assert len(fake.jobs) == 1


async def test_a_retry_within_the_grace_finds_the_call_and_without_one_it_is_cancelled(
    clients: list[httpx.AsyncClient], nodes: list[WebNode], redis_url: str
) -> None:
    async with worker(redis_url, waiting(saying("kept"))) as fake:
        first = asyncio.create_task(post(clients[0], "retried"))
        await until(lambda: fake.running == 1)
        first.cancel()
        fake.go.set()
        answer = await post(clients[0], "retried")
        assert (answer.json()["generated_text"], len(fake.jobs)) == ("kept", 1)
        fake.go.clear()
        before = len(nodes[0].log_lines())
        second = asyncio.create_task(post(clients[0], "left"))
        await until(lambda: fake.running == 1)
        second.cancel()
        await until(lambda: len(fake.cancelled) == 1)
        async with async_redis(settings_for(redis_url)) as client:
            deadline = time.monotonic() + 30
            while await client.hvals(Keys().admission):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        await until(lambda: "client_closed" in [line.get("cause") for line in nodes[0].log_lines()[before:]])
        fake.go.set()
        assert not replayed(await post(clients[1], "left"))


async def test_who_waits_takes_over_from_a_dead_node(
    clients: list[httpx.AsyncClient], redis_server: EmbeddedRedis, redis_url: str, tmp_path: Path
) -> None:
    async with worker(redis_url, waiting(saying("again"))) as fake:
        values = node_values(tmp_path) | {"lease_seconds": 1.5}
        with web_node(tmp_path, redis_server.url, **values) as dies:
            async with httpx.AsyncClient(base_url=dies.url, timeout=30) as http:
                first = asyncio.create_task(post(http))
                await until(lambda: fake.running == 1)
                second = asyncio.create_task(post(clients[1]))
                await _until_wanted(redis_url)
                dies.process.kill()
                await asyncio.gather(first, return_exceptions=True)
        await until(lambda: len(fake.jobs) == 2)
        fake.go.set()
        answer = await second
    assert (answer.json()["generated_text"], replayed(answer)) == ("again", False)


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        ("/v1/completions", {"prompt": "x"}, {"prompt": "y"}),
        ("/v2/models/scripted/generate", {"text_input": "x"}, {"text_input": "y"}),
        ("/", {"inputs": "x"}, {"inputs": "y"}),
        ("/invocations", {"inputs": "x"}, {"inputs": "y"}),
    ],
)
async def test_all_apis(
    clients: list[httpx.AsyncClient], redis_url: str, path: str, body: dict[str, str], other: dict[str, str]
) -> None:
    headers = {"authorization": "Bearer a", "idempotency-key": "k"}
    async with worker(redis_url, saying("once")) as fake:
        first, again, conflict = [
            await client.post(path, json=asked, headers=headers)
            for client, asked in ((clients[0], body), (clients[1], body), (clients[1], other))
        ]
        assert len(fake.jobs) == 1
    assert (first.status_code, again.status_code, conflict.status_code) == (200, 200, 422)
    assert (again.content, replayed(again)) == (first.content, True)
    if path.startswith("/v1/"):
        error = conflict.json()["error"]
        assert (error["type"], error["code"]) == ("idempotency_error", "idempotency_key_reused")


async def test_streams_say_that_the_key_has_no_effect(clients: list[httpx.AsyncClient], redis_url: str) -> None:
    async with worker(redis_url, saying("x")) as fake:
        for _ in range(2):
            response = await post(clients[0], path="/generate_stream")
            assert response.headers["x-ignored-parameters"] == "idempotency-key"
            assert response.headers["content-type"] == "text/event-stream"
        assert len(fake.jobs) == 2
