"""A web node that is told to stop: what it still does, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from common.keys import Keys
from common.wire import Finish, Job, Token, Tokens
from tests.integration.client.fake_worker import FakeWorker, accept_and_hang, until
from tests.integration.web.serving import WebNode, events, eventually, web_node, worker


async def begin_and_wait(fake: FakeWorker, job: Job) -> None:
    """One token, the second one when the test says so."""
    await fake.accept(job)
    await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)]))
    await fake.go.wait()
    await fake.emit(job, Tokens(1, [Token(66, "B", -1.0, False)], Finish("length", 2, 0.01)))


class Asked:
    """A stream that has begun."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.begun = asyncio.Event()
        self.status = 0
        self.text = ""
        self._http = http
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> str:
        async with self._http.stream("POST", "/generate_stream", json={"inputs": "x"}) as response:
            self.status = response.status_code
            async for text in response.aiter_text():
                self.text += text
                if "data:" in text:
                    self.begun.set()
        return self.text


@contextlib.asynccontextmanager
async def started(folder: Path, url: str, **settings: Any) -> AsyncIterator[tuple[WebNode, httpx.AsyncClient]]:
    with web_node(folder / "drain", url, **settings) as node:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
            yield node, http


def tell(node: WebNode) -> None:
    node.process.send_signal(signal.SIGTERM)


async def ended(node: WebNode, seconds: float) -> int:
    await until(lambda: node.process.poll() is not None, seconds)
    assert "Traceback" not in node.log_text()
    return int(node.process.returncode)


async def probe(node: WebNode, path: str) -> httpx.Response:
    """On a connection of its own, as probes come."""
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        return await http.get(path)


async def ready(node: WebNode) -> bool:
    return (await probe(node, "/health/ready")).status_code == 200


async def stopping(node: WebNode) -> bool:
    response = await probe(node, "/health/ready")
    return response.status_code == 503 and response.json()["error"] == "not ready: this web node is stopping"


async def test_g14_what_runs_ends_well_and_what_is_new_is_refused(node_folder: Path, redis_url: str) -> None:
    async with started(node_folder, redis_url) as (node, http), worker(redis_url, begin_and_wait) as fake:
        asked = Asked(http)
        whole = asyncio.create_task(http.post("/generate", json={"inputs": "x"}))
        await asked.begun.wait()
        await until(lambda: fake.running == 2)
        await eventually(lambda: ready(node))
        tell(node)
        await eventually(lambda: stopping(node))
        assert (await probe(node, "/health")).status_code == 503
        assert (await probe(node, "/health/live")).status_code == 200
        for path, body in (("/generate", {"inputs": "x"}), ("/v1/completions", {"prompt": "x"})):
            async with httpx.AsyncClient(base_url=node.url, timeout=30) as other:
                refused = await other.post(path, json=body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            assert "This web node is stopping" in refused.text
        assert (await probe(node, "/metrics")).status_code == 200
        assert not asked.task.done()
        assert not whole.done()
        fake.go.set()
        told = events(await asked.task)
        assert [event["token"]["text"] for event in told] == ["A", "B"]
        assert (await whole).json() == {"generated_text": "AB"}
        assert await ended(node, 30.0) == 0
        assert fake.taken == 2
        assert fake.cancelled == []


async def test_at_the_limit_requests_end_with_an_error(node_folder: Path, redis_url: str) -> None:
    async with (
        started(node_folder, redis_url, graceful_termination_timeout=1) as (node, http),
        worker(redis_url, begin_and_wait) as fake,
    ):
        asked = Asked(http)
        whole = asyncio.create_task(http.post("/generate", json={"inputs": "x"}))
        await asked.begun.wait()
        await until(lambda: fake.running == 2)
        tell(node)
        first, last = events(await asked.task)
        assert first["token"]["text"] == "A"
        assert last == {"error": "The web node stopped", "error_type": "unavailable"}
        answer = await whole
        assert (answer.status_code, answer.json()) == (503, last)
        assert int(answer.headers["retry-after"]) >= 1
        assert await ended(node, 30.0) == 0
        with redis.Redis.from_url(redis_url) as connection:
            assert all(connection.exists(Keys().cancelled(job)) for job in fake.jobs)
        ends = [line for line in node.log_lines() if line["event"] == "request"]
        assert [(line["cause"], line["reason"]) for line in ends] == [("unavailable", "shutdown")] * 2


async def test_a_second_signal_ends_it_now(node_folder: Path, redis_url: str) -> None:
    async with started(node_folder, redis_url) as (node, http), worker(redis_url, accept_and_hang) as fake:
        hanging = asyncio.create_task(http.post("/generate", json={"inputs": "x"}))
        await until(lambda: fake.running == 1)
        tell(node)
        await eventually(lambda: stopping(node))
        tell(node)
        assert await ended(node, 30.0) == 0  # far below the grace period of 90 s
        with pytest.raises(httpx.HTTPError):
            await hanging


async def test_an_idle_node_goes_at_once_unless_it_is_to_give_notice(node_folder: Path, redis_url: str) -> None:
    async with started(node_folder, redis_url, web_concurrency=2) as (node, http):
        await http.get("/health/live")  # a connection kept alive
        tell(node)
        assert await ended(node, 30.0) == 0
    async with started(node_folder, redis_url, drain_notice=3.0) as (node, http):
        began = time.monotonic()
        tell(node)
        await eventually(lambda: stopping(node))
        with contextlib.suppress(httpx.HTTPError):
            while True:
                assert await stopping(node)
                await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 2.9
        assert await ended(node, 30.0) == 0
