"""Hundreds of requests, three in ten of whose clients leave: every text is right and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from ops.local_service import LocalService
from ops.process_figures import open_files, resident_mib
from tests.acceptance.clients import generate, http_client, open_stream, script
from tests.acceptance.observation import (
    Observer,
    assert_alive,
    in_flight,
    named_processes,
    until,
)

REQUESTS = 600
CLIENTS = 48
LEAVING = 0.3
MOST_GROWTH_MIB = 16.0
"""What a process may grow by over the measured round, after a warm-up round of half its size: allocators keep some air."""
MOST_NEW_FILES = 20
"""Connections to Redis are kept, 16 a process at most. Clients' own are closed at the end."""

WORDS = [
    "naïve",
    "queue",
    "token",
    "brown",
    "ключ",
    "漢字",
    "🙂",
    "👩\u200d🚀",
    "step",
    "batch",
    "page",
    "lazy",
    "über",
    "fox",
]


@pytest.fixture
def service() -> Iterator[LocalService]:
    settings = {"MODEL_ID": "scripted", "MAX_BATCH_SIZE": "20", "TGQ_HEARTBEAT_SECONDS": "0.2"}
    with LocalService(settings, web=2, workers=2) as running:
        yield running


class Crowd:
    """Clients that send requests of their own making, one after another, until all are sent."""

    def __init__(self, client: httpx.AsyncClient, urls: list[str], seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._client = client
        self._urls = urls
        self._random = random.Random(seed)
        self._number = 0

    async def send(self, requests: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._one_after_another(requests))

    async def _one_after_another(self, requests: int) -> None:
        while self._number < requests:
            self._number += 1
            await self._request(self._number)

    async def _request(self, number: int) -> None:
        draw = self._random
        words = draw.choices(WORDS, k=draw.randint(1, 12))
        text = f"{number}: {' '.join(words)} {draw.getrandbits(64):x}."
        # Some engines answer at once, some let their client wait.
        prompt = script(text, step_ms=draw.choice([0, 0, 5, 20]), first_ms=draw.choice([0, 0, 50]))
        url = draw.choice(self._urls)
        # A moment to leave at is part of the load. The slower ones take half a second or so.
        leaves_after = draw.uniform(0, 0.3) if draw.random() < LEAVING else None
        heard = ""
        try:
            async with asyncio.timeout(leaves_after):
                if number % 2:
                    heard = await generate(self._client, prompt, url=url)
                else:
                    async with open_stream(self._client, prompt, url=url) as stream:
                        try:
                            assert await stream.finish() == stream.text
                        finally:
                            heard = stream.text
                            assert text.startswith(heard), (text, heard)
                            assert stream.error is None
        except TimeoutError:
            self.outcomes["left"] += 1
            return
        assert heard == text
        self.outcomes["served"] += 1


async def test_no_wrong_text_and_no_leak(service: LocalService) -> None:
    with Observer(service) as seen:
        async with http_client() as client:
            processes = named_processes(service, seen)
            files = {name: open_files(pid) for name, pid in processes.items()}
            await Crowd(client, service.urls, seed=1).send(REQUESTS // 2)
            await seen.until_idle()
            memory = {name: resident_mib(pid) for name, pid in processes.items()}
            keys, channels = seen.lasting_keys(), seen.reply_channels()
            assert len(channels) == len(service.urls)

            crowd = Crowd(client, service.urls, seed=2)
            await crowd.send(REQUESTS)
            assert crowd.outcomes.total() == REQUESTS
            assert crowd.outcomes["left"] > 0.15 * REQUESTS, crowd.outcomes
            await seen.until_idle()
            assert await in_flight(client, *service.urls) == 0
            assert_alive(*service.web, *service.workers)
            assert named_processes(service, seen) == processes
            assert seen.lasting_keys() <= keys
            assert seen.reply_channels() == channels
            for name, pid in processes.items():
                grown = resident_mib(pid) - memory[name]
                assert grown < MOST_GROWTH_MIB, f"{name} grew by {grown:.1f} MiB"
        # Connections that clients closed are noticed soon, not at once.
        await until(
            lambda: all(open_files(pid) <= files[name] + MOST_NEW_FILES for name, pid in processes.items()),
            10,
            "the files of closed connections",
        )
