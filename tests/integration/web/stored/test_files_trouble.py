"""Files that are large, cut off or nowhere: what their uploads take, and what is left of them."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from pathlib import Path

import httpx
import psutil
import redis.asyncio

from common.keys import Keys
from ops.embedded_redis import EmbeddedRedis
from tests.integration.web.serving import WebNode, eventually, web_node
from tests.integration.web.stored.forms import FORM, MEBIBYTE, error_of, form, large_form, stored

KEYS = Keys()


class Memory:
    """Bytes of the node's processes together."""

    def __init__(self, node: WebNode) -> None:
        process = psutil.Process(node.process.pid)
        self._processes = [process, *process.children(recursive=True)]
        self.first = self.most = self._now()

    def _now(self) -> int:
        return sum(process.memory_info().rss for process in self._processes)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self._now())
            await asyncio.sleep(0.02)


async def test_a_large_file_passes_through_little_memory(
    client: httpx.AsyncClient, node: WebNode, storage: Path
) -> None:
    memory = Memory(node)
    watching = asyncio.create_task(memory.watch())
    try:
        answer = await client.post("/v1/files", content=large_form(64), headers=FORM)
        assert answer.status_code == 200, answer.text
        file = answer.json()
        assert file["bytes"] == 64 * MEBIBYTE
        assert (storage / "files/files" / file["id"]).stat().st_size == 64 * MEBIBYTE
        read = 0
        async with client.stream("GET", f"/v1/files/{file['id']}/content") as content:
            async for chunk in content.aiter_bytes():
                read += len(chunk)
        assert read == 64 * MEBIBYTE
    finally:
        watching.cancel()
    assert memory.most - memory.first < 40 * MEBIBYTE
    await client.delete(f"/v1/files/{file['id']}")


async def test_a_file_beyond_the_limit(client: httpx.AsyncClient, node: WebNode, storage: Path) -> None:
    before = stored(storage)
    error = error_of(await client.post("/v1/files", content=large_form(81), headers=FORM), 413)
    assert str(80 * MEBIBYTE) in error["message"]
    assert stored(storage) == before
    # One that is announced is refused before it comes.
    connection = HTTPConnection(node.url.removeprefix("http://"), timeout=30)
    headers = FORM | {"content-length": str(81 * MEBIBYTE), "authorization": "Bearer a"}
    connection.putrequest("POST", "/v1/files")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


async def test_who_leaves_in_the_middle_leaves_nothing(
    client: httpx.AsyncClient, storage: Path, redis_url: str
) -> None:
    before = stored(storage)
    sending = asyncio.create_task(client.post("/v1/files", content=large_form(16, pause=0.05), headers=FORM))

    async def begun() -> bool:
        return stored(storage) != before

    await eventually(begun)
    sending.cancel()

    async def gone() -> bool:
        return stored(storage) == before

    await eventually(gone)
    async with redis.asyncio.Redis.from_url(redis_url) as plain:
        assert await plain.zcard(KEYS.file_expiry) == 0


async def test_bytes_that_are_elsewhere(client: httpx.AsyncClient, storage: Path) -> None:
    file_id = (await client.post("/v1/files", **form())).json()["id"]
    (storage / "files/files" / file_id).unlink()
    answer = await client.get(f"/v1/files/{file_id}/content")
    assert "where this node looks" in error_of(answer, 503)["message"]
    assert (await client.delete(f"/v1/files/{file_id}")).status_code == 200


async def test_storage_that_takes_nothing(node_folder: Path, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    blocked = tmp_path / "a file, no folder"
    blocked.write_text("")
    with web_node(node_folder, redis_server.url, batch_storage=blocked) as node:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
            answer = await http.post("/v1/files", **form())
            error = error_of(answer, 503)
            assert answer.headers["retry-after"]
            assert "storage" in error["message"]
            assert str(tmp_path) not in answer.text
            assert (await http.get("/v1/files")).json()["data"] == []


async def test_redis_away(node_folder: Path, tmp_path: Path) -> None:
    with (
        EmbeddedRedis(tmp_path / "redis") as server,
        web_node(node_folder, server.url, batch_storage=tmp_path / "files") as node,
    ):
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
            file_id = (await http.post("/v1/files", **form())).json()["id"]
            server.stop()
            batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
            for answer in (
                await http.post("/v1/files", **form()),
                await http.get("/v1/files"),
                await http.get(f"/v1/files/{file_id}"),
                await http.get(f"/v1/files/{file_id}/content"),
                await http.delete(f"/v1/files/{file_id}"),
                await http.post("/v1/batches", json=batch),
                await http.get("/v1/batches"),
                await http.get("/v1/batches/batch_1"),
                await http.get("/v1/batches/batch_1/events"),
                await http.post("/v1/batches/batch_1/cancel"),
            ):
                error_of(answer, 503)
            assert {file.name for file in (tmp_path / "files").rglob("*") if file.is_file()} == {file_id}
