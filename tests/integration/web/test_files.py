"""`/v1/files` over a real connection, and what is left of uploads that go wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import redis.asyncio

from common.batches.file_records import FileRecords
from common.batches.objects import FileObject, new_file_id
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from tests.integration.web.serving import WebNode, eventually, web_node

KEYS = Keys()
LINES = b'{"custom_id": "a"}\n{"custom_id": "\xc3\xa9"}\n'
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def node(node_folder: Path, redis_server: EmbeddedRedis, storage: Path) -> Iterator[WebNode]:
    keys = storage / "keys.toml"
    keys.write_text('[[keys]]\nname = "a"\nsecret = "a"\n[[keys]]\nname = "b"\nsecret = "b"\n')
    with web_node(
        node_folder,
        redis_server.url,
        batch_storage=storage / "files",
        api_keys_file=keys,
        max_file_bytes=80 * MEBIBYTE,
        redis_timeout=0.5,
    ) as node:
        yield node


@pytest.fixture
async def client(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30, headers={"authorization": "Bearer a"}) as http:
        yield http


@pytest.fixture
def sdk(node: WebNode, redis_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="a", max_retries=0) as client:
        yield client


@pytest.fixture
async def records(redis_url: str) -> AsyncIterator[FileRecords]:
    settings = Settings.of(redis_url=redis_url)
    async with async_redis(settings) as client:
        yield FileRecords(client, KEYS, settings)


def form(name: str = "in.jsonl", content: bytes = LINES, **expires_after: str) -> dict[str, Any]:
    expiry = {f"expires_after[{name}]": value for name, value in expires_after.items()}
    return {"files": {"file": (name, content)}, "data": {"purpose": "batch", **expiry}}


def stored(storage: Path) -> set[str]:
    """Names of all that is in storage, unfinished or not."""
    return {file.name for file in (storage / "files").rglob("*") if file.is_file()}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def test_as_the_sdk_uses_it(sdk: openai.OpenAI, storage: Path) -> None:
    before = time.time()
    made = sdk.files.create(file=("in.jsonl", LINES), purpose="batch")
    assert made.model_extra == {}
    assert (made.object, made.purpose, made.status, made.bytes) == ("file", "batch", "processed", len(LINES))
    assert made.filename == "in.jsonl"
    assert made.id.startswith("file-")
    assert abs(made.created_at - before) < 60
    assert made.expires_at == made.created_at + 30 * 86_400
    assert sdk.files.retrieve(made.id) == made
    assert sdk.files.wait_for_processing(made.id) == made
    assert sdk.files.content(made.id).content == LINES
    assert (storage / "files/files" / made.id).stat().st_mode & 0o777 == 0o600
    deleted = sdk.files.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    for call in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)
    assert made.id not in stored(storage)


def test_pages_as_the_sdk_reads_them(sdk: openai.OpenAI) -> None:
    ids = [sdk.files.create(file=(f"{number}.jsonl", LINES), purpose="batch").id for number in range(5)]
    assert [file.id for file in sdk.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in sdk.files.list(limit=2, order="asc")] == ids
    assert [file.id for file in sdk.files.list(purpose="batch", limit=1)] == ids[::-1]
    assert sdk.files.list(purpose="batch_output").data == []
    page = sdk.files.list(limit=2)
    assert (page.has_more, page.model_extra) == (True, {"object": "list", "first_id": ids[4], "last_id": ids[3]})
    # A page goes on where it ended, also when that file is gone.
    sdk.files.delete(ids[3])
    assert [file.id for file in sdk.files.list(after=ids[3])] == ids[2::-1]


def test_an_expiry_of_ones_own(sdk: openai.OpenAI) -> None:
    made = sdk.files.create(
        file=("in.jsonl", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600


async def test_files_are_their_owners_alone(client: httpx.AsyncClient) -> None:
    file_id = (await client.post("/v1/files", **form())).json()["id"]
    other = {"authorization": "Bearer b"}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        error = error_of(await client.request(method, f"/v1/files/{file_id}{path}", headers=other), 404)
        assert (error["type"], error["param"]) == ("invalid_request_error", "id")
    assert (await client.get("/v1/files", headers=other)).json()["data"] == []
    assert (await client.get("/v1/files", headers={"authorization": ""})).status_code == 401
    assert (await client.get(f"/v1/files/{file_id}")).status_code == 200


async def test_an_expired_file_is_not_there(client: httpx.AsyncClient, records: FileRecords) -> None:
    now = int(time.time())
    file = FileObject(
        id=new_file_id(), bytes=1, created_at=now - 7200, expires_at=now - 1, filename="x", purpose="batch"
    )
    await records.put_file("a", file)
    error_of(await client.get(f"/v1/files/{file.id}"), 404)
    error_of(await client.delete(f"/v1/files/{file.id}"), 404)
    assert (await client.get("/v1/files")).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_content_is_a_download(client: httpx.AsyncClient) -> None:
    name = 'é "x".jsonl'
    file_id = (await client.post("/v1/files", **form(name))).json()["id"]
    got = await client.get(f"/v1/files/{file_id}/content", headers={"accept": "application/binary"})
    head = await client.head(f"/v1/files/{file_id}/content")
    assert got.content == LINES
    for answer in (got, head):
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-length"] == str(len(LINES))
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
    empty = (await client.post("/v1/files", **form(content=b""))).json()
    assert empty["bytes"] == 0
    assert (await client.get(f"/v1/files/{empty['id']}/content")).content == b""


async def test_the_order_of_fields_does_not_matter(client: httpx.AsyncClient) -> None:
    parts: list[tuple[str, Any]] = [
        ("file", ("in.jsonl", LINES)),
        ("purpose", (None, "batch")),
        ("colour", (None, "red")),
    ]
    answer = await client.post("/v1/files", files=parts, headers={"idempotency-key": "x"})
    assert answer.status_code == 200
    assert answer.headers["x-ignored-parameters"] == "colour, idempotency-key"


async def test_a_compressed_form(client: httpx.AsyncClient) -> None:
    plain = client.build_request("POST", "/v1/files", **form())
    headers = {"content-type": plain.headers["content-type"], "content-encoding": "gzip"}
    answer = await client.post("/v1/files", content=gzip.compress(plain.read()), headers=headers)
    assert answer.json()["bytes"] == len(LINES)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": ("x", b"")}}, "file"),
        ({"files": {"file": ("in.jsonl", LINES)}}, "purpose"),
        (form() | {"data": {"purpose": "fine-tune"}}, "purpose"),
        (form() | {"data": {"purpose": ["batch", "batch"]}}, "purpose"),
        ({"files": [("file", ("a", b"1")), ("file", ("b", b"2"))], "data": {"purpose": "batch"}}, "file"),
        ({"files": {"file": (None, b"text"), "purpose": (None, "batch")}}, "file"),
        (form("x" * 256), "file"),
        (form(seconds="7200"), "expires_after.anchor"),
        (form(anchor="created_at"), "expires_after.seconds"),
        (form(anchor="now", seconds="7200"), "expires_after.anchor"),
        (form(anchor="created_at", seconds="3599"), "expires_after.seconds"),
        (form(anchor="created_at", seconds="2592001"), "expires_after.seconds"),
        (form(anchor="created_at", seconds="1e4"), "expires_after.seconds"),
    ],
)
async def test_bad_forms_name_the_field(
    client: httpx.AsyncClient, storage: Path, sent: dict[str, Any], field: str
) -> None:
    before = stored(storage)
    error = error_of(await client.post("/v1/files", **sent), 400)
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert stored(storage) == before
    assert (await client.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data", b"--x--", 400),
        ("multipart/form-data; boundary=" + "x" * 71, b"--x--", 400),
        ("multipart/form-data; boundary=x", b"", 400),
        ("multipart/form-data; boundary=x", b"--x", 400),
        # Ends in the middle of its file: not to be taken for all of it.
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n1', 400),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--", 400),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n1\r\n--x--', 400),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\xff\r\n--x--', 400),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"y" * 5000 + b"\r\n--x--",
            400,
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a\nSet-Cookie: b"\r\n\r\n1\r\n--x--',
            400,
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="z"\r\n\r\n1\r\n' * 33 + b"--x--",
            400,
        ),
    ],
)  # fmt: skip
async def test_bodies_that_are_no_forms(
    client: httpx.AsyncClient, storage: Path, kind: str, body: bytes, status: int
) -> None:
    before = stored(storage)
    error_of(await client.post("/v1/files", content=body, headers={"content-type": kind}), status)
    assert stored(storage) == before


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=batch_1", "after"),
        ("after=file-" + "x" * 100, "after"),
    ],
)
async def test_bad_queries_name_the_field(client: httpx.AsyncClient, query: str, field: str) -> None:
    assert error_of(await client.get(f"/v1/files?{query}"), 400)["param"] == field


async def large_form(mebibytes: int, *, then: bytes = b"\r\n--x--\r\n", pause: float = 0) -> AsyncIterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
    for _ in range(mebibytes * 16):
        yield b"\n" * (MEBIBYTE // 16)
        await asyncio.sleep(pause)
    yield then


FORM = {"content-type": "multipart/form-data; boundary=x"}


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
    assert memory.most - memory.first < 24 * MEBIBYTE
    await client.delete(f"/v1/files/{file['id']}")


async def test_a_file_beyond_the_limit(client: httpx.AsyncClient, node: WebNode, storage: Path) -> None:
    before = stored(storage)
    error = error_of(await client.post("/v1/files", content=large_form(81), headers=FORM), 413)
    assert str(80 * MEBIBYTE) in error["message"]
    assert stored(storage) == before
    # One that is announced is refused before it comes.
    connection = HTTPConnection(node.url.removeprefix("http://"), timeout=10)
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
        web_node(node_folder, server.url, batch_storage=tmp_path / "files", redis_timeout=0.5) as node,
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


def test_nothing_of_files_is_logged(sdk: openai.OpenAI, node: WebNode) -> None:
    made = sdk.files.create(file=("private-name.jsonl", b"private-words"), purpose="batch")
    assert made.id in node.log_text()
    assert "private" not in node.log_text()
    (line,) = [line for line in node.log_lines() if line.get("file") == made.id]
    assert json.dumps(line).count("private") == 0
    assert (line["event"], line["bytes"], line["tenant"]) == ("file_uploaded", 13, "a")
