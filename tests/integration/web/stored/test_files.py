"""`/v1/files` over a real connection."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from common.batches.file_records import FileRecords
from common.batches.objects import FileObject, new_file_id
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings
from tests.integration.web.serving import WebNode
from tests.integration.web.stored.forms import LINES, error_of, form, stored

KEYS = Keys()


@pytest.fixture
async def records(redis_url: str) -> AsyncIterator[FileRecords]:
    settings = Settings.of(redis_url=redis_url)
    async with async_redis(settings) as client:
        yield FileRecords(client, KEYS, settings)


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


def test_nothing_of_files_is_logged(sdk: openai.OpenAI, node: WebNode) -> None:
    made = sdk.files.create(file=("private-name.jsonl", b"private-words"), purpose="batch")
    assert made.id in node.log_text()
    assert "private" not in node.log_text()
    (line,) = [line for line in node.log_lines() if line.get("file") == made.id]
    assert json.dumps(line).count("private") == 0
    assert (line["event"], line["bytes"], line["tenant"]) == ("file_uploaded", 13, "a")
