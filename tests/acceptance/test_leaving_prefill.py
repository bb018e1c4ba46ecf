"""A client that leaves while a real model still reads its long prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from common.settings import DEFAULT_MODEL
from ops.local_service import LocalService
from tests.acceptance.clients import generate, http_client, leave
from tests.acceptance.observation import Observer, in_flight, until

CHUNK = 16
PROMPT = "one two three four " * 1900
"""Takes ten seconds or more to read."""
SOON = 4.0


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    settings = {
        "TGQ_DEVICE": "cpu",
        "MAX_TOTAL_TOKENS": "8192",
        "MAX_BATCH_PREFILL_TOKENS": str(CHUNK),
        "TGQ_HEARTBEAT_SECONDS": "0.05",
    }
    with LocalService(settings) as running:
        yield running


async def test_the_rest_of_the_prompt_is_not_read(service: LocalService) -> None:
    with Observer(service, DEFAULT_MODEL) as seen:
        (pid,) = (record.pid for record in seen.workers())

        def chunks_read() -> int:
            return seen.worker(pid).stats.inference_count.get("prefill", 0)

        async with http_client(service.url) as client:
            begun = chunks_read()
            waiting = asyncio.create_task(generate(client, PROMPT, max_new_tokens=10))
            await until(lambda: seen.running() == 1 and chunks_read() > begun + 2, 60, "the prompt's first chunks")
            await leave(waiting)
            await until(lambda: seen.running() == 0 and seen.permits() == 0, SOON, "a free slot")
            await seen.until_idle(SOON)
            assert chunks_read() - begun < len(PROMPT.split()) / CHUNK / 2, "most of the prompt was read all the same"
            assert await in_flight(client) == 0
            assert await generate(client, "The sea is", max_new_tokens=3)
