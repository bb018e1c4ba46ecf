"""One web node in front of workers with different models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import until
from tests.integration.web.serving import WebNode, eventually, saying, web_node, worker

OTHER = "owner/other"


@pytest.fixture(scope="module")
def node(node_folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    """Gives models up soon after their last worker went."""
    with web_node(
        node_folder,
        redis_server.url,
        heartbeat_seconds=0.25,
        worker_dead_after=1,
        queue_timeout=5,
        served_model_name="main",
        max_concurrent_requests=8,
    ) as node:
        yield node


@pytest.fixture
async def client(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        yield http


async def v2(client: httpx.AsyncClient, model: str) -> httpx.Response:
    return await client.post(f"/v2/models/{model}/generate", json={"text_input": "x"})


async def listed(client: httpx.AsyncClient) -> list[str]:
    names: list[str] = (await client.get("/v2/models")).json()["models"]
    return names


async def test_the_queue_follows_the_model(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("a"), "main") as main, worker(redis_url, saying("b"), OTHER) as other:
        await eventually(lambda: has(client, OTHER))
        for name in (OTHER, "owner%2Fother"):
            assert (await v2(client, name)).json() == {"text_output": "b", "model_name": OTHER, "model_version": "1"}
        for name in ("main", "tgi", "dummy", "scripted", "http%3A%2F%2F127.0.0.1%3A8080"):
            assert (await v2(client, name)).json() == {"text_output": "a", "model_name": "main", "model_version": "1"}
        assert (await client.post("/generate", json={"inputs": "x"})).json() == {"generated_text": "a"}
        assert (await v2(client, "owner/third")).status_code == 404
        assert (await client.get(f"/v2/models/{OTHER}/versions/1/ready")).json() == {"name": OTHER, "ready": True}
        assert {job.model for job in main.jobs.values()} == {"main"}
        assert {job.model for job in other.jobs.values()} == {OTHER}
        assert len(other.jobs) == 2


async def has(client: httpx.AsyncClient, model: str) -> bool:
    return model in await listed(client)


async def test_models_and_adapters_are_listed_the_default_first(client: httpx.AsyncClient, redis_url: str) -> None:
    async with (
        worker(redis_url, saying("a"), "main", adapters=["own"]),
        worker(redis_url, saying("b"), "a-model", adapters=["second", "first"]),
    ):
        expected = ["main", "own", "a-model", "first", "second"]

        async def all_listed() -> bool:
            return await listed(client) == expected

        await eventually(all_listed)


async def test_an_adapter_is_a_name_of_its_model(client: httpx.AsyncClient, redis_url: str) -> None:
    async with (
        worker(redis_url, saying("a"), "main", adapters=["tone"]) as main,
        worker(redis_url, saying("b"), OTHER, adapters=["style"]) as other,
    ):
        await eventually(lambda: has(client, "style"))
        assert (await v2(client, "tone")).json()["model_name"] == "tone"
        assert (await v2(client, "style")).json()["text_output"] == "b"
        body = {"text_input": "x", "parameters": {"adapter_id": "tone"}}
        assert (await client.post("/v2/models/main/generate", json=body)).status_code == 200
        contradiction = await client.post("/v2/models/style/generate", json=body)
        assert contradiction.status_code == 422
        assert "`adapter_id`" in contradiction.json()["error"]
        elsewhere = await client.post(f"/v2/models/{OTHER}/generate", json=body)
        assert elsewhere.status_code == 422
    assert [job.adapter for job in main.jobs.values()] == ["tone", "tone"]
    assert [job.adapter for job in other.jobs.values()] == ["style"]


async def test_a_model_whose_workers_went_waits_for_them_and_is_then_forgotten(
    client: httpx.AsyncClient, redis_url: str
) -> None:
    async with worker(redis_url, saying("b"), OTHER):
        await eventually(lambda: has(client, OTHER))
    await eventually(lambda: gone(client, OTHER))
    waiting = asyncio.create_task(v2(client, OTHER))
    await eventually(lambda: queued(client, OTHER, 1))
    async with worker(redis_url, saying("back"), OTHER):
        assert (await waiting).json()["text_output"] == "back"
    late = await v2(client, OTHER)
    assert late.status_code == 504
    await eventually(lambda: unknown(client, OTHER))


async def gone(client: httpx.AsyncClient, model: str) -> bool:
    return not await has(client, model)


async def unknown(client: httpx.AsyncClient, model: str) -> bool:
    return (await client.get(f"/v2/models/{model}")).status_code == 404


async def queued(client: httpx.AsyncClient, model: str, count: int) -> bool:
    return f'tgq_queue_jobs{{model="{model}"}} {count}\n' in (await client.get("/metrics")).text


async def test_figures_are_of_all_models(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("a"), "main"), worker(redis_url, saying("b"), OTHER) as other:
        other.taking = False
        await eventually(lambda: has(client, OTHER))
        waiting = asyncio.create_task(v2(client, OTHER))
        await eventually(lambda: queued(client, OTHER, 1))
        expected = ('tgq_queue_jobs{model="main"} 0\n', "tgi_queue_size 1\n", 'tgq_workers{state="ready"} 2\n')

        async def told() -> bool:
            text = (await client.get("/metrics")).text
            return all(line in text for line in expected)

        await eventually(told)
        other.taking = True
        assert (await waiting).status_code == 200


async def test_a_model_whose_files_are_not_here_is_unavailable(client: httpx.AsyncClient, redis_url: str) -> None:
    async with worker(redis_url, saying("b"), "far/away", model_id="/no/such/folder") as far:
        await eventually(lambda: unavailable(client, "far/away"))
    assert not far.jobs


async def unavailable(client: httpx.AsyncClient, model: str) -> bool:
    response = await v2(client, model)
    return response.status_code == 503 and "retry-after" in response.headers


async def test_any_name_can_mean_the_default_model(
    node_folder: Path, redis_server: EmbeddedRedis, redis_url: str
) -> None:
    with web_node(node_folder, redis_server.url, accept_any_model=True) as node:
        async with worker(redis_url, saying("a")) as fake, httpx.AsyncClient(base_url=node.url, timeout=30) as client:
            answer = (await v2(client, "gpt-4o-mini")).json()
            assert answer == {"text_output": "a", "model_name": "scripted", "model_version": "1"}
            await until(lambda: not fake.running)
