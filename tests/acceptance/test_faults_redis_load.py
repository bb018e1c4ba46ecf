"""Redis restarts, or is cut off from one worker, under load: every stream that was accepted is accounted for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import httpx
import pytest

from ops.chaos.tcp_proxy import TcpProxy
from ops.local_service import LocalService
from tests.acceptance.clients import LongStream, generate, http_client, script
from tests.acceptance.observation import Observer, assert_alive, in_flight, until

STREAMS = 24
SERVING_AGAIN = 10.0
ENDED_WITHIN = 60.0
SETTINGS = {"MODEL_ID": "scripted", "MAX_BATCH_SIZE": "8", "TGQ_ENGINE_THREADS": "1"}
"""Fewer places than streams: some wait in the queue when it happens."""


def text_of(number: int) -> str:
    return f"<{number}> " * 60


async def begin(client: httpx.AsyncClient, numbers: Sequence[int], chance: random.Random) -> list[asyncio.Task[str]]:
    """Streams of different lengths, each with a text of its own."""

    async def run(number: int) -> str:
        prompt = script(text_of(number), step_ms=chance.uniform(5, 20))
        stream = LongStream(client, prompt, "")
        try:
            await stream.start(1)
        except AssertionError as refusal:
            return f"refused: {refusal}"
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


def all_sent(seen: Observer) -> bool:
    return seen.running() + seen.pulled() + seen.queued() >= STREAMS


@pytest.mark.parametrize("durable", [False, True], ids=["in_memory", "append_only"])
async def test_a_restart_under_load(*, durable: bool) -> None:
    """With an append-only file nothing accepted is lost. Without one a stream may end with an error, and never hangs."""
    chance = random.Random(3)
    with LocalService(SETTINGS, append_only=durable) as service:
        assert service.redis is not None
        async with http_client(service.url) as client:
            for how in ("kill", "stop"):
                streams = await begin(client, range(STREAMS), chance)
                with Observer(service) as seen:
                    await until(lambda: all_sent(seen), 20, "all jobs to be with a worker or in the queue")
                (service.redis.kill if how == "kill" else service.redis.stop)()
                await asyncio.sleep(chance.uniform(0.2, 1.0))
                service.redis.start()
                await serves(client, SERVING_AGAIN)
                async with asyncio.timeout(ENDED_WITHIN):
                    texts = await asyncio.gather(*streams)
                for number, text in enumerate(texts):
                    assert text == text_of(number) or (text == "error" and not durable), (how, number, text)
                with Observer(service) as seen:
                    await seen.until_idle()
                assert await in_flight(client) == 0
        assert_alive(*service.web, *service.workers)


async def test_a_worker_that_is_cut_off_loses_and_repeats_nothing() -> None:
    """The wire to one of two workers swallows everything: the other one takes over, and the first one comes back."""
    chance = random.Random(4)
    with LocalService({**SETTINGS, "TGQ_REDIS_TIMEOUT": "1", "TGQ_HEARTBEAT_SECONDS": "0.5"}) as service:
        assert service.redis is not None
        with TcpProxy(service.redis.port or 0) as wire:
            service.add_worker({"REDIS_URL": wire.url})
            service.wait_ready()
            async with http_client(service.url, timeout=120) as client:
                streams = await begin(client, range(STREAMS), chance)
                with Observer(service) as seen:
                    await until(lambda: min(record.running for record in seen.workers()) > 0, 20, "both to run streams")
                    wire.hole = True
                    async with asyncio.timeout(ENDED_WITHIN):
                        texts = await asyncio.gather(*streams)
                    assert texts == [text_of(number) for number in range(STREAMS)]
                    assert wire.swallowed > 0
                    assert_alive(*service.workers)
                    wire.hole = False
                    service.wait_ready(30)
                    await seen.until_idle(15)
                more = await begin(client, range(STREAMS), chance)
                assert await asyncio.gather(*more) == texts
                assert await in_flight(client) == 0
        assert_alive(*service.web, *service.workers)
