"""A request is cancelled by its id while the web node that runs it does not hear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.wire import Job, Token, Tokens
from ops.chaos.tcp_proxy import TcpProxy
from ops.embedded_redis import EmbeddedRedis
from tests.event_streams import data_of
from tests.integration.client.fake_worker import FakeWorker, until
from tests.integration.web.serving import WebNode, web_node, worker


@pytest.fixture(scope="module")
def wire(redis_server: EmbeddedRedis) -> Iterator[TcpProxy]:
    with TcpProxy(redis_server.port or 0) as wire:
        yield wire


@pytest.fixture(scope="module")
def cut_off(node_folder: Path, wire: TcpProxy) -> Iterator[WebNode]:
    with web_node(node_folder / "cut-off", wire.url, lease_seconds=60) as node:
        yield node


async def test_it_is_not_said_to_be_unknown_and_is_cancelled_in_the_end(
    shared_node: WebNode, cut_off: WebNode, wire: TcpProxy, redis_url: str
) -> None:
    async def one_and_hang(fake: FakeWorker, job: Job) -> None:
        await fake.accept(job)
        await fake.emit(job, Tokens(0, [Token(65, "A", -1.0, False)]))
        await fake.go.wait()

    async def cancel(name: str) -> int:
        return (await http.delete(f"{shared_node.url}/v1/requests/{name}")).status_code

    async with worker(redis_url, one_and_hang) as fake, httpx.AsyncClient(timeout=30) as http:
        assert await cancel("far") == 404
        url, headers = f"{cut_off.url}/generate_stream", {"x-request-id": "far"}
        async with http.stream("POST", url, json={"inputs": "x"}, headers=headers) as response:
            chunks = response.aiter_raw()
            heard = await anext(chunks)
            wire.stop()
            try:
                refused = await http.delete(f"{shared_node.url}/v1/requests/far")
                assert refused.status_code == 503
                assert "Not every web node has answered" in refused.text
            finally:
                wire.start()
            # The question is asked until it is heard, which may take a busy machine longer than one request waits.
            told = [await cancel("far")]
            while told[-1] == 503 and len(told) < 10:
                told.append(await cancel("far"))
            assert told[-1] == 200 or (len(told) > 1 and told[-1] == 404)
            async for chunk in chunks:
                heard += chunk
        assert json.loads(data_of(heard.decode())[-1])["error_type"] == "cancelled"
        await until(lambda: len(fake.cancelled) == 1)
        assert await cancel("far") == 404
