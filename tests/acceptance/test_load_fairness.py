"""G16: one key's flood, and another key's single request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import body, http_client, script
from tests.acceptance.observation import Observer, until

SLOTS = 4
FLOOD = 200
LIMIT = 128
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
    payload = body(script(ANSWER, step_ms=20))
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
            flood = [asyncio.create_task(send(client, url, "a")) for _ in range(FLOOD)]

            def served() -> int:
                return sum(task.done() and task.result() == 200 for task in flood)

            await until(lambda: served() >= SLOTS, 20, "the flood's first answers")
            assert seen.queued() > LIMIT // 2
            for node in (url, other):
                before = served()
                assert await send(client, node, "b") == 200
                # Those that ran when it came, those that ran beside it, and as many again while its answer was on its way.
                assert served() - before <= 4 * SLOTS
            statuses = await asyncio.gather(*flood)
            assert set(statuses) == {200, 429}
            assert statuses.count(200) == LIMIT - LIMIT // 8
            await seen.until_idle()
