"""Requests no client library sends, over real connections."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gunicorn.config import Config
from gunicorn.workers import gasgi

from ops import draining_worker
from ops.draining_worker import DrainingWorker
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import until
from tests.integration.web.serving import WebNode, web_node

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
JSON = "Content-Type: application/json\r\n"


async def opened(node: WebNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = node.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def ask(node: WebNode, line: str, headers: str = "") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request without its body."""
    reader, writer = await opened(node)
    try:
        writer.write(f"{line} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        async with asyncio.timeout(30):
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().splitlines()
            found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            content = await reader.readexactly(int(found.get("content-length", "0")))
        return int(status.split()[1]), found, content
    finally:
        writer.close()


@pytest.mark.parametrize("announced", ["Content-Length: 50\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_refusals_do_not_wait_for_the_body(shared_node: WebNode, announced: str) -> None:
    for path, more, status in (("/nope", JSON, 404), ("/health", JSON, 405), ("/generate", "", 415)):
        answer = await ask(shared_node, f"POST {path}", more + announced)
        assert answer[0] == status
        assert b"error_type" in answer[2]


async def test_a_refused_body_that_still_comes_leaves_the_connection_usable(shared_node: WebNode) -> None:
    reader, writer = await opened(shared_node)
    async with asyncio.timeout(30):
        for _ in range(2):
            writer.write(f"POST /nope HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: 5\r\n\r\n".encode())
            assert b" 404 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"12345")
            assert b"not_found" in await reader.readuntil(b"}")
    writer.close()


async def test_a_websocket_is_refused(shared_node: WebNode) -> None:
    before = len(shared_node.log_text())
    for path in ("/", "/generate", "/health", "/nope"):
        assert (await ask(shared_node, f"GET {path}", UPGRADE))[0] == 403
    # But for the ends of earlier tests' requests.
    assert [line for line in shared_node.log_text()[before:].splitlines() if '"event": "request"' not in line] == []


async def test_a_method_nobody_knows(shared_node: WebNode) -> None:
    before = len(shared_node.log_text())
    status, headers, content = await ask(shared_node, "FOO /generate")
    assert (status, headers["allow"]) == (405, "POST, OPTIONS")
    assert b'"error_type":"method_not_allowed"' in content
    assert (await ask(shared_node, "FOO /nope"))[0] == 404
    assert "unexpected" not in shared_node.log_text()[before:]


async def test_absolute_targets(shared_node: WebNode) -> None:
    assert b'"model_id":"scripted"' in (await ask(shared_node, "GET http://x/info"))[2]
    assert (await ask(shared_node, "GET http://other.example:1/nope?x=/info"))[0] == 404


async def test_the_key_may_have_any_characters(node_folder: Path, redis_server: EmbeddedRedis) -> None:
    with web_node(node_folder, redis_server.url, api_key="voilà-ключ") as node:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as client:
            for key, status in (("voilà-ключ", 200), ("voila-ключ", 401)):
                headers = {b"authorization": f"Bearer {key}".encode()}
                answer = await client.post("/tokenize", json={"inputs": "x"}, headers=headers)
                assert answer.status_code == status


async def test_connections_without_a_whole_request_do_not_keep_a_process(
    node_folder: Path, redis_server: EmbeddedRedis
) -> None:
    with web_node(node_folder, redis_server.url, graceful_termination_timeout=60) as node:
        starts = (b"", b"GET /hea", f"POST /nope HTTP/1.1\r\nHost: x\r\n{JSON}Content-Length: 9\r\n\r\n".encode())
        connections = []
        for start in starts:
            reader, writer = await opened(node)
            writer.write(start)
            connections.append((reader, writer))
        await asyncio.wait_for(connections[-1][0].readuntil(b"}"), 30)
        node.process.send_signal(signal.SIGTERM)
        try:
            assert await asyncio.to_thread(node.process.wait, 40) == 0
        except subprocess.TimeoutExpired:
            pytest.fail("a connection holds the process")
        for _, writer in connections:
            writer.close()


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    """A server of the worker's connections in this process, impatient, with an application that answers 8 MB."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
        if scope["path"] == "/flood":
            # A client counts as gone while the server waits for it.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await send({"type": "http.response.body", "body": b"x" * 8_000_000, "more_body": True})
            return
        await send({"type": "http.response.body"})

    monkeypatch.setattr(draining_worker, "FIRST_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(draining_worker, "LAST_BYTES_SECONDS", 0.5)
    monkeypatch.setattr(gasgi, "ASGIProtocol", gasgi.ASGIProtocol)  # `init_process` replaces it
    configuration = Config()
    configuration.set("keepalive", 30)
    worker = DrainingWorker(0, os.getppid(), [], None, 30, configuration, _Log(configuration))
    worker.asgi, worker.loop = app, asyncio.get_running_loop()
    server = await worker.loop.create_server(lambda: draining_worker._KnownProtocol(worker), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()
    await until(lambda: not worker.nr_conns)
    worker.tmp.close()


class _Log(logging.Logger):
    access_log_enabled = False

    def __init__(self, configuration: Config) -> None:
        super().__init__("test")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost:"])
async def test_a_new_connection_has_not_for_ever_to_ask(address: tuple[str, int], start: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(start)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_a_connection_that_has_asked_is_kept(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 1)
    writer.close()


async def test_a_connection_whose_client_takes_nothing_is_cut(address: tuple[str, int]) -> None:
    """Closing waits for what was written, which this client never takes; the fixture sees the connection's end."""
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.readexactly(1), 30)
    protocols = draining_worker._KnownProtocol.known
    await until(lambda: all(protocol._conn_lost_handled for protocol in protocols))
    writer.close()
