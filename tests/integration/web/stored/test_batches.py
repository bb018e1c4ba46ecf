"""`/v1/batches` over a real connection; the test plays the runner."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from common.batches.objects import BatchUsage, Counts, Part
from common.batches.store import BatchStore
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from tests.integration.web.serving import web_node

OTHER = {"authorization": "Bearer b"}
NEVER_SET = {
    "errors",
    "model",
    "output_file_id",
    "error_file_id",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "usage",
}
"""Of a new batch."""


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[BatchStore]:
    settings = Settings.of(redis_url=redis_url)
    async with async_redis(settings) as client:
        yield BatchStore(client, Keys(), settings)


async def uploaded(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> str:
    answer = await client.post(
        "/v1/files", files={"file": ("in.jsonl", b"{}")}, data={"purpose": "batch"}, headers=headers
    )
    return str(answer.json()["id"])


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"input_file_id": await uploaded(client), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = await client.post("/v1/batches", json=body | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return dict(error)


def test_as_the_sdk_uses_it(sdk: openai.OpenAI) -> None:
    file = sdk.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    made = [
        sdk.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"job": str(number)},
        )
        for number in range(5)
    ]
    first = made[0]
    assert (first.object, first.status, first.completion_window) == ("batch", "validating", "24h")
    assert (first.endpoint, first.input_file_id, first.metadata) == ("/v1/chat/completions", file.id, {"job": "0"})
    assert first.model_extra == {}
    assert abs(first.created_at - time.time()) < 60
    assert first.expires_at == first.created_at + 86_400
    assert first.request_counts is not None
    assert first.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
    told = first.to_dict()
    assert {name for name, value in told.items() if value is None} == NEVER_SET
    assert sdk.batches.retrieve(first.id) == first
    assert [batch.id for batch in sdk.batches.list(limit=2)] == [batch.id for batch in reversed(made)]
    stopped = sdk.batches.cancel(first.id)
    assert stopped.status == "cancelling"
    assert stopped.cancelling_at is not None
    assert sdk.batches.cancel(first.id) == stopped == sdk.batches.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        sdk.files.delete(file.id)
    with pytest.raises(openai.NotFoundError, match="batch_none"):
        sdk.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError, match="batch_none"):
        sdk.batches.cancel("batch_none")


async def test_batches_are_their_owners_alone(client: httpx.AsyncClient) -> None:
    batch = await created(client)
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        error = error_of(await client.request(method, f"/v1/batches/{batch['id']}{path}", headers=OTHER), 404)
        assert error["param"] == "id"
    assert (await client.get("/v1/batches", headers=OTHER)).json()["data"] == []
    body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    error = error_of(await client.post("/v1/batches", json=body, headers=OTHER), 404)
    assert error["param"] == "input_file_id"


async def test_the_runner_is_told_of_the_key_and_the_expiry(client: httpx.AsyncClient, store: BatchStore) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    await created(client, completion_window="30s", output_expires_after=expiry)
    await uploaded(client, OTHER)
    claim = await store.claim("runner", 60)
    assert claim is not None
    assert claim.tenant == "a"
    assert (claim.request.weight, claim.request.models, claim.request.output_expires_after) == (2.5, ["scripted"], 7200)
    assert claim.batch.expires_at == claim.batch.created_at + 30


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"endpoint": 1}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"completion_window": None}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": []}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2592001}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "end", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after.seconds"),
    ],
)
async def test_bad_bodies_name_the_field(client: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    body = {"input_file_id": await uploaded(client), "endpoint": "/v1/completions", "completion_window": "24h"}
    error = error_of(await client.post("/v1/batches", json=body | change), 400)
    assert error["param"] == field
    assert (await client.get("/v1/batches")).json()["data"] == []


async def test_the_limits_themselves_are_allowed(client: httpx.AsyncClient) -> None:
    metadata = {f"{number:064}": "v" * 512 for number in range(16)}
    expiry = {"anchor": "created_at", "seconds": 2_592_000}
    batch = await created(client, metadata=metadata, output_expires_after=expiry, endpoint="/v1/completions")
    assert batch["metadata"] == metadata


async def test_unknown_keys_are_named(client: httpx.AsyncClient) -> None:
    body = {"input_file_id": await uploaded(client), "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = await client.post("/v1/batches", json=body | {"colour": 1})
    assert answer.headers["x-ignored-parameters"] == "colour"


async def test_a_file_that_cannot_be_an_input(client: httpx.AsyncClient, store: BatchStore) -> None:
    body = {"input_file_id": "file-none", "endpoint": "/v1/completions", "completion_window": "24h"}
    error = error_of(await client.post("/v1/batches", json=body), 404)
    assert (error["param"], "file-none" in error["message"]) == ("input_file_id", True)
    file_id = await uploaded(client)
    await client.delete(f"/v1/files/{file_id}")
    error_of(await client.post("/v1/batches", json=body | {"input_file_id": file_id}), 404)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=file-1"])
async def test_bad_queries_name_the_field(client: httpx.AsyncClient, query: str) -> None:
    error = error_of(await client.get(f"/v1/batches?{query}"), 400)
    assert error["param"] == query.partition("=")[0]


async def test_a_repeated_call_makes_one_batch(client: httpx.AsyncClient) -> None:
    body = {"input_file_id": await uploaded(client), "endpoint": "/v1/completions", "completion_window": "24h"}
    key = {"idempotency-key": "once"}
    first, second = [await client.post("/v1/batches", json=body, headers=key) for _ in range(2)]
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert len((await client.get("/v1/batches")).json()["data"]) == 1
    other = await client.post("/v1/batches", json=body | {"endpoint": "/v1/chat/completions"}, headers=key)
    assert other.status_code == 422
    # What was refused is no answer to keep.
    key = {"idempotency-key": "twice"}
    assert (await client.post("/v1/batches", json=body | {"endpoint": "x"}, headers=key)).status_code == 400
    assert (await client.post("/v1/batches", json=body, headers=key)).status_code == 200


@asynccontextmanager
async def listening(client: httpx.AsyncClient, batch_id: str) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a batch's events."""
    async with client.stream("GET", f"/v1/batches/{batch_id}/events") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        async with asyncio.timeout(60):
            yield response.aiter_lines()


async def next_event(lines: AsyncIterator[str]) -> dict[str, Any] | None:
    """The data of the next event; None at the end of the stream."""
    async for line in lines:
        if line.startswith("data: "):
            return dict(json.loads(line.removeprefix("data: ")))
    return None


async def test_events_tell_every_change_up_to_the_end(client: httpx.AsyncClient, store: BatchStore) -> None:
    batch = await created(client)
    claim = await store.claim("runner", 60)
    assert claim is not None
    async with listening(client, batch["id"]) as lines:
        assert await next_event(lines) == batch
        await store.update(claim, status="in_progress", request_counts=Counts(total=2))
        event = await next_event(lines)
        assert event is not None
        assert (event["status"], event["request_counts"]["total"]) == ("in_progress", 2)
        async for line in lines:
            if line == ":":  # Nothing happens, and the stream says so.
                break
        part = Part(name="p", kind="output", bytes=1, lines=2)
        await store.register_part(claim, part, completed=2, usage=BatchUsage.of(3, 4))
        event = await next_event(lines)
        assert event is not None
        assert event["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert event["usage"] == {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        }
        await store.update(claim, status="finalizing")
        assert (await next_event(lines) or {})["status"] == "finalizing"
        await store.update(claim, status="completed", output_file_id="file-1")
        last = await next_event(lines)
        assert last is not None
        assert (last["status"], last["output_file_id"]) == ("completed", "file-1")
        assert await next_event(lines) is None
    assert (await client.get(f"/v1/batches/{batch['id']}")).json() == last
    # Of what has ended already, its end.
    async with listening(client, batch["id"]) as lines:
        assert await next_event(lines) == last
        assert await next_event(lines) is None
    error = error_of(await client.post(f"/v1/batches/{batch['id']}/cancel"), 400)
    assert "'completed'" in error["message"]


async def test_events_of_a_batch_that_vanishes(client: httpx.AsyncClient, store: BatchStore, redis_url: str) -> None:
    batch = await created(client)
    async with listening(client, batch["id"]) as lines:
        assert await next_event(lines) == batch
        async with async_redis(Settings.of(redis_url=redis_url)) as plain:
            await plain.flushall()
        event = await next_event(lines)
        assert event is not None
        assert batch["id"] in event["error"]["message"]
        assert await next_event(lines) is None


async def test_events_end_with_their_web_node(
    node_folder: Path, redis_server: EmbeddedRedis, redis_url: str, tmp_path: Path
) -> None:
    with web_node(node_folder, redis_server.url, batch_storage=tmp_path) as node:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
            batch = await created(http)
            async with listening(http, batch["id"]) as lines:
                assert await next_event(lines) == batch
                node.process.terminate()
                assert await next_event(lines) is None
        assert await asyncio.to_thread(node.process.wait, 60) == 0
