"""G16: one key's flood, and another key's single request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import body, http_client, script, start_stream
from tests.acceptance.observation import Observer, until

SLOTS = 4
FLOOD = 200
LIMIT = 128
ADMITTED = LIMIT - LIMIT // 8 - SLOTS
"""Of the flood, behind what fills the engine: the last eighth of the places is for other keys."""
ANSWER = "A short one."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text("".join(f'[[keys]]\nname = "{name}"\nsecret = "secret-{name}"\n' for name in "ab"))
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": str(SLOTS),
        "MAX_CONCURRENT_REQUESTS": str(LIMIT),
        "TGQ_API_KEYS_FILE": str(keys),
    }
    with LocalService(settings, web=2) as running:
        yield running


async def send(client: httpx.AsyncClient, url: str, key: str) -> int:
    payload = body(script(ANSWER, step_ms=100))
    response = await client.post(f"{url}/generate", json=payload, headers={"authorization": f"Bearer secret-{key}"})
    if response.status_code == 429:
        assert 1 <= int(response.headers["retry-after"]) <= 60
    else:
        assert response.json()["generated_text"] == ANSWER
    return response.status_code


async def test_a_single_request_does_not_wait_for_another_keys_flood(service: LocalService) -> None:
    url, other = service.urls
    async with http_client() as client:
        with Observer(service) as seen:
            client.headers["authorization"] = "Bearer secret-a"
            # Nothing of the flood is served before all of it has come.
            first = [
                await start_stream(client, script("and on ", repeat=900, step_ms=20), url=url) for _ in range(SLOTS)
            ]
            flood = [asyncio.create_task(send(client, url, "a")) for _ in range(FLOOD)]

            def ended(status: int) -> int:
                return sum(task.done() and task.result() == status for task in flood)

            await until(lambda: ended(429) == FLOOD - ADMITTED, 30, "the refusals")
            await until(lambda: seen.queued() == ADMITTED, 20, "the queue")
            for stream in first:
                await stream.leave()
            await until(lambda: ended(200) >= SLOTS, 20, "the flood's first answers")
            for node in (url, other):
                before = ended(200)
                assert await send(client, node, "b") == 200
                # Those that ran when it came and those that ran beside it; behind the flood it would be all of them.
                assert ended(200) - before < ADMITTED // 3
            assert ended(429) == FLOOD - ADMITTED
            for task in flood:
                task.cancel()
            await asyncio.wait(flood)
            await seen.until_idle(20)
