"""Real workers with different models behind one web node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import script
from tests.acceptance.observation import Observer, until

OTHER = "owner/other"
AS_OTHER = {"TGQ_SERVED_MODEL_NAME": OTHER}


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService({"MODEL_ID": "scripted", "TGQ_WORKER_DEAD_AFTER": "3"}) as service:
        service.add_worker(AS_OTHER)
        service.wait_ready()
        yield service


def generated(seen: Observer) -> dict[str, int]:
    """Tokens by model."""
    return {worker.model: worker.stats.generated_tokens for worker in seen.workers()}


async def names(client: httpx.AsyncClient) -> list[str]:
    return [model["id"] for model in (await client.get("/v1/models")).json()["data"]]


async def test_a_request_goes_to_workers_of_its_model(client: httpx.AsyncClient, seen: Observer) -> None:
    said, before = script("one two three"), generated(seen)
    for path, body in (
        ("/generate", {"inputs": said}),
        ("/v1/completions", {"prompt": said}),
        ("/v1/completions", {"prompt": said, "model": "tgi"}),
    ):
        await answered(client, path, body, "scripted")
    for path, body in (
        ("/v1/completions", {"prompt": said, "model": OTHER}),
        ("/invocations", {"prompt": said, "model": OTHER}),
        (f"/v2/models/{OTHER}/generate", {"text_input": said}),
        ("/v2/models/owner%2Fother/versions/1/generate", {"text_input": said}),
    ):
        await answered(client, path, body, OTHER)
    tokens = 4  # a word each, and end-of-text
    expected = {"scripted": before["scripted"] + 3 * tokens, OTHER: before[OTHER] + 4 * tokens}
    await until(lambda: generated(seen) == expected, 10, f"{expected}")


async def answered(client: httpx.AsyncClient, path: str, body: dict[str, Any], model: str) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert "one two three" in str(answer)
    assert answer.get("model", answer.get("model_name", "scripted")) == model


async def test_what_is_served_is_listed_and_nothing_else_is_answered(client: httpx.AsyncClient) -> None:
    assert await names(client) == ["scripted", OTHER]
    assert (await client.get("/v2/models")).json() == {"models": ["scripted", OTHER]}
    assert (await client.get(f"/v1/models/{OTHER}")).json()["id"] == OTHER
    unknown = await client.post("/v1/completions", json={"prompt": "x", "model": "gpt-4"})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"
    assert (await client.post("/v2/models/gpt-4/generate", json={"text_input": "x"})).status_code == 404


async def test_a_model_outlives_its_worker(service: LocalService, client: httpx.AsyncClient) -> None:
    service.workers[-1].kill()
    await until(lambda: gone(client), 20, "the web node to see it")
    body = {"prompt": script("still here"), "model": OTHER}
    request = asyncio.create_task(client.post("/v1/completions", json=body))
    assert await names(client) == ["scripted"]
    assert (await client.get("/v2/health/ready")).status_code == 200
    service.add_worker(AS_OTHER)
    response = await request
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == "still here"
    # The worker answered before its first heartbeat was heard, perhaps.
    await until(lambda: back(client), 20, "the web node to see it again")


async def back(client: httpx.AsyncClient) -> bool:
    return bool((await client.get(f"/v2/models/{OTHER}/ready")).json() == {"name": OTHER, "ready": True})


async def gone(client: httpx.AsyncClient) -> bool:
    return (await client.get(f"/v2/models/{OTHER}/ready")).status_code == 503
