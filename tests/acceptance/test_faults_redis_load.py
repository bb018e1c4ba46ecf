"""Redis restarts, or is cut off from one worker, under load: every stream that was accepted is accounted for."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest

from ops.chaos.tcp_proxy import TcpProxy
from ops.local_service import LocalService
from tests.acceptance.clients import LongStream, generate, script
from tests.acceptance.observation import Observer, assert_alive, in_flight, until

STREAMS = 16
SLOTS = 6
SERVING_AGAIN = 20.0
ENDED_WITHIN = 60.0
SETTINGS = {
    "MODEL_ID": "scripted",
    "MAX_BATCH_SIZE": str(SLOTS),
    "TGQ_ENGINE_THREADS": "1",
    "TGQ_HEARTBEAT_SECONDS": "0.25",
    "TGQ_REDIS_TIMEOUT": "1",
    "TGQ_WORKER_DEAD_AFTER": "1.5",
}
"""Fewer places than streams: some wait in the queue when it happens."""


def text_of(number: int) -> str:
    return f"<{number}> " * 25


async def begin(client: httpx.AsyncClient, numbers: Sequence[int], chance: random.Random) -> list[asyncio.Task[str]]:
    """Streams of different lengths, each with a text of its own."""

    async def run(number: int) -> str:
        prompt = script(text_of(number), step_ms=chance.uniform(10, 30))
        give_up_at = time.monotonic() + ENDED_WITHIN
        while True:
            stream = LongStream(client, prompt, "")
            try:
                await stream.start(1)
                break
            except AssertionError as end:
                if "503" not in str(end) or time.monotonic() > give_up_at:
                    return f"ended: {end}"
            await asyncio.sleep(0.2)  # Refused: nothing was accepted that could be lost.
        text = await stream.finish()
        if stream.stream.error is not None:
            assert stream.stream.error["error_type"] in (
                "unavailable",
                "generation",
                "timeout",
                "incomplete_generation",
            )
            return "error"
        assert stream.stream.text == text
        return text

    return [asyncio.create_task(run(number)) for number in numbers]


async def serves(client: httpx.AsyncClient, seconds: float) -> None:
    """New requests are answered again within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            assert await generate(client, script("There.")) == "There."
            return
        except AssertionError:
            assert time.monotonic() < deadline, f"not served within {seconds:g} s"
            await asyncio.sleep(0.1)


def crowded(seen: Observer) -> bool:
    return seen.running() >= SLOTS and seen.queued() > 0


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService(SETTINGS, append_only=True) as running:
        yield running


@pytest.mark.parametrize("how", ["kill", "stop", "wipe"])
async def test_a_restart_under_load(service: LocalService, client: httpx.AsyncClient, seen: Observer, how: str) -> None:
    """With an append-only file nothing accepted is lost. Without one a stream may end with an error, and never hangs."""
    chance = random.Random(how)
    server = service.redis
    assert server is not None
    streams = await begin(client, range(STREAMS), chance)
    await until(lambda: crowded(seen), 20, "a full worker and a queue")
    (server.stop if how == "stop" else server.kill)()
    if how == "wipe":
        shutil.rmtree(server.directory)
    await asyncio.sleep(chance.uniform(0.2, 1.0))
    server.start()
    await serves(client, SERVING_AGAIN)
    async with asyncio.timeout(ENDED_WITHIN):
        texts = await asyncio.gather(*streams)
    for number, text in enumerate(texts):
        assert text == text_of(number) or (how == "wipe" and text == "error"), (number, text)
    await seen.until_idle(20)
    assert await in_flight(client) == 0
    assert_alive(*service.web, *service.workers)


async def test_a_worker_that_is_cut_off_loses_and_repeats_nothing(
    service: LocalService, client: httpx.AsyncClient, seen: Observer
) -> None:
    """The wire to one of two workers swallows everything: the other one takes over, and the first one comes back."""
    chance = random.Random(4)
    assert service.redis is not None
    with TcpProxy(service.redis.port or 0) as wire:
        service.add_worker({"REDIS_URL": wire.url})
        service.wait_ready()
        streams = await begin(client, range(STREAMS), chance)
        await until(lambda: min(record.running for record in seen.workers()) > 0, 20, "both to run streams")
        wire.hole = True
        async with asyncio.timeout(ENDED_WITHIN):
            texts = await asyncio.gather(*streams)
        assert texts == [text_of(number) for number in range(STREAMS)]
        assert wire.swallowed > 0
        assert_alive(*service.workers)
        wire.hole = False
        service.wait_ready(30)
        await seen.until_idle(20)
        more = await begin(client, range(STREAMS), chance)
        assert await asyncio.gather(*more) == texts
        assert await in_flight(client) == 0
        assert_alive(*service.web, *service.workers)
