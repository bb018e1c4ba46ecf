"""More requests at once than may be under way, at one web node and at two."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import body, generate, http_client, script
from tests.acceptance.observation import Observer, in_flight, read_metric, until

LIMIT = 64
REQUESTS = 200
OVERLOADED = {"error": "Model is overloaded", "error_type": "overloaded"}


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    settings = {"MODEL_ID": "scripted", "MAX_CONCURRENT_REQUESTS": str(LIMIT), "TGQ_HEARTBEAT_SECONDS": "0.2"}
    with LocalService(settings, web=2, workers=2) as running:
        yield running


@dataclass
class Outcome:
    status: int
    right: bool
    """Whether the answer is the one and only right one for its status."""
    ended_at: float


def said(number: int) -> str:
    return f"The answer to number {number} is {number * number}, and not {number + 1}; that is what it is."


async def request(client: httpx.AsyncClient, url: str, number: int) -> Outcome:
    """One request, every second one a stream."""
    payload = body(script(said(number), step_ms=100, first_ms=6000))
    if number % 2:
        response = await client.post(f"{url}/generate", json=payload)
        text = response.json().get("generated_text")
    else:
        response = await client.post(f"{url}/generate_stream", json=payload)
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        text = events[-1]["generated_text"] if events else None
    if response.status_code == 429:
        right = response.json() == OVERLOADED and int(response.headers["retry-after"]) >= 1
    else:
        right = text == said(number)
    return Outcome(response.status_code, right, time.monotonic())


@pytest.mark.parametrize("nodes", [1, 2])
async def test_exactly_the_limit_is_served_and_the_others_are_refused_at_once(
    service: LocalService, nodes: int
) -> None:
    urls = service.urls[:nodes]
    async with http_client() as client:
        refused_before = sum([await read_metric(client, "tgq_rejected_total", url) for url in urls])
        with Observer(service) as seen:
            tasks = [
                asyncio.create_task(request(client, url, number))
                for number, url in zip(range(REQUESTS), itertools.cycle(urls), strict=False)
            ]
            await until(lambda: sum(task.done() for task in tasks) == REQUESTS - LIMIT, 30, "the refusals")
            assert seen.permits() == LIMIT
            assert await in_flight(client, *urls) == LIMIT
            outcomes = await asyncio.gather(*tasks)
            assert all(outcome.right for outcome in outcomes)
            served = [outcome.ended_at for outcome in outcomes if outcome.status == 200]
            refused = [outcome.ended_at for outcome in outcomes if outcome.status == 429]
            assert (len(served), len(refused)) == (LIMIT, REQUESTS - LIMIT)
            assert max(refused) < min(served), "a refusal waited for a place"
            await seen.until_idle(20)
        assert await in_flight(client, *urls) == 0
        assert sum([await read_metric(client, "tgq_rejected_total", url) for url in urls]) - refused_before == len(
            refused
        )
        assert await generate(client, script("There is room again."), url=urls[-1]) == "There is room again."
