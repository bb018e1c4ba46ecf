"""Doors of a real node: keys with limits, files that change, compressed and odd bodies, request ids."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.keys import Keys
from common.redis_clients import async_redis
from ops.embedded_redis import EmbeddedRedis
from tests.contract.tgi import check_answer
from tests.integration.client.fake_worker import accept_and_hang, settings_for, until
from tests.integration.web.serving import WebNode, eventually, saying, web_node, worker

KEYS: dict[str, dict[str, Any]] = {
    "free": {},
    "narrow": {"requests_in_flight": 1},
    "frugal": {"tokens_per_minute": 200},
    "elsewhere": {"models": ["another-model"]},
}


def keys_file(folder: Path, names: list[str]) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": name, "secret": f"s3cret-{name}"} | KEYS[name] for name in names]}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors")


@pytest.fixture(scope="module")
def node(folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    with web_node(folder, redis_server.url, api_keys_file=keys_file(folder, list(KEYS)), protect="all") as node:
        yield node


@pytest.fixture
async def keyed(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        yield http


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer s3cret-{name}"}


async def test_everything_but_health_wants_a_key_when_all_is_protected(keyed: httpx.AsyncClient) -> None:
    async def nobody() -> bool:
        return (await keyed.get("/health")).status_code == 503

    await eventually(nobody)  # the node may have seen another test's worker when it started
    for path in ("/health", "/ping", "/"):
        assert (await keyed.get(path)).status_code == 503
    for path in ("/info", "/metrics"):
        assert (await keyed.get(path)).status_code == 401
        assert (await keyed.get(path, headers=bearer("wrong"))).status_code == 401
        assert (await keyed.get(path, headers=bearer("free"))).status_code == 200
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    allowed = await keyed.options("/generate", headers=preflight | {"access-control-request-headers": "x-stainless-os"})
    assert allowed.status_code == 200
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert "idempotency-key" in allowed.headers["access-control-allow-headers"]


async def test_a_refusal_carries_an_id_and_how_to_do_better(keyed: httpx.AsyncClient) -> None:
    response = await keyed.post("/generate", json={"inputs": "x"}, headers={"x-request-id": "abc"})
    check_answer(response)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"] == "abc"
    assert response.json()["error_type"] == "unauthorized"


CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/completions", {"prompt": "x"}),
        ("GET", "/v1/models", None),
        ("POST", "/v2/models/scripted/generate", {"text_input": "x"}),
        ("POST", "/chat_tokenize", CHAT),
        ("POST", "/invocations", {"inputs": "x"}),
        ("GET", "/docs", None),
    ],
)
async def test_every_api_refuses_in_its_own_words(
    keyed: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    response = await keyed.request(method, path, json=body)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    if path.startswith("/v1/"):
        assert set(told) == {"error"}
        assert (told["error"]["type"], told["error"]["code"]) == ("authentication_error", "invalid_api_key")
    else:
        assert set(told) == ({"error"} if path.startswith("/v2/") else {"error", "error_type"})


async def test_openai_s_clients_see_which_limit_was_reached(keyed: httpx.AsyncClient, redis_url: str) -> None:
    body = {"prompt": "x", "max_tokens": 199}
    # What it really takes is there again after 18 s.
    async with worker(redis_url, saying("x" * 58)):
        first = await keyed.post("/v1/completions", json=body, headers=bearer("frugal"))
        assert first.status_code == 200, first.text
        refused = await keyed.post("/v1/completions", json=body, headers=bearer("frugal"))
        never = await keyed.post("/v1/completions", json=body | {"max_tokens": 250}, headers=bearer("frugal"))
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "tokens per minute" in error["message"]
    assert (never.status_code, never.json()["error"]["param"]) == (422, "max_tokens")


async def test_a_key_sees_the_models_it_is_for(keyed: httpx.AsyncClient) -> None:
    for name, ids in (("free", ["scripted"]), ("elsewhere", [])):
        listed = (await keyed.get("/v1/models", headers=bearer(name))).json()
        assert [model["id"] for model in listed["data"]] == ids
        assert (await keyed.get("/v2/models", headers=bearer(name))).json() == {"models": ids}
    assert (await keyed.get("/v1/models/scripted", headers=bearer("elsewhere"))).status_code == 404


async def test_requests_in_flight_are_limited_by_key(keyed: httpx.AsyncClient, node: WebNode, redis_url: str) -> None:
    async with worker(redis_url, accept_and_hang) as fake:
        first = asyncio.create_task(keyed.post("/generate", json={"inputs": "x"}, headers=bearer("narrow")))
        await until(lambda: fake.running == 1)
        for path in ("/generate", "/generate_stream", "/"):
            refused = await keyed.post(path, json={"inputs": "x"}, headers=bearer("narrow"))
            check_answer(refused)
            assert refused.status_code == 429
            assert refused.json()["error_type"] == "overloaded"
            assert "requests in flight of this key: limit 1" in refused.json()["error"]
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.headers["x-ratelimit-limit-requests"] == "1"
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        other = asyncio.create_task(keyed.post("/generate", json={"inputs": "x"}, headers=bearer("free")))
        await until(lambda: fake.running == 2)
        for task in (first, other):
            task.cancel()
        await asyncio.gather(first, other, return_exceptions=True)
        await until(lambda: fake.running == 0)
    async with worker(redis_url, saying("x")):
        deadline = time.monotonic() + 30
        while (answer := await keyed.post("/generate", json={"inputs": "x"}, headers=bearer("narrow"))).is_error:
            assert time.monotonic() < deadline, answer.text
            await asyncio.sleep(0.02)
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    ends = [line for line in node.log_lines() if line["event"] == "request"]
    assert {line.get("key") for line in ends} >= {"narrow", "free"}
    assert "s3cret" not in node.log_text()


async def test_tokens_a_minute_are_limited_by_key(keyed: httpx.AsyncClient, redis_url: str) -> None:
    async def post(path: str, count: int) -> httpx.Response:
        body = {"inputs": "x" * 10, "parameters": {"max_new_tokens": count}}
        response = await keyed.post(path, json=body, headers=bearer("frugal"))
        check_answer(response)
        return response

    async with worker(redis_url, saying("abc")) as fake:
        never = await post("/generate", 191)
        assert never.status_code == 422
        assert "prompt tokens + `max_new_tokens` must be at most 200" in never.json()["error"]
        first = await post("/generate", 190)
        assert first.status_code == 200
        assert (first.headers["x-ratelimit-limit-tokens"], first.headers["x-ratelimit-remaining-tokens"]) == (
            "200",
            "0",
        )
        assert first.headers["x-ratelimit-reset-tokens"] == "60.000s"
        # It took 14 of them: 10 of the prompt and 4 of the answer.
        streamed = await post("/generate_stream", 176)
        assert (streamed.status_code, streamed.headers["x-ratelimit-limit-tokens"]) == (200, "200")
        refused = await post("/generate", 190)
        assert refused.status_code == 429
        assert "tokens per minute of this key: limit 200" in refused.json()["error"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) >= 172
        assert len(fake.jobs) == 2
    async with async_redis(settings_for(redis_url)) as client:
        assert set(await client.hkeys(Keys().key_limits("frugal"))) == {b"used"}
        assert await client.pttl(Keys().key_limits("frugal")) > 0


ASKED: dict[str, Any] = {
    "inputs": "x",
    "prompt": "x",
    "text_input": "x",
    "messages": [{"role": "user", "content": "x"}],
}
"""A body for every route."""


@pytest.mark.parametrize(
    "route",
    [
        *(
            "POST /generate",
            "POST /generate_stream",
            "POST /",
            "POST /invocations",
            "POST /tokenize",
            "POST /chat_tokenize",
        ),
        *("POST /v1/chat/completions", "POST /v1/completions"),
        *("GET /v2/models/scripted", "GET /v2/models/scripted/ready", "GET /v2/models/tgi/versions/1/ready"),
        *("POST /v2/models/scripted/generate", "POST /v2/models/scripted/generate_stream"),
    ],
)
async def test_a_key_for_other_models_finds_none_here(keyed: httpx.AsyncClient, redis_url: str, route: str) -> None:
    method, path = route.split()
    fields = {name: ASKED[name] for name in _fields(path)}

    async def seen() -> bool:
        return (await keyed.get("/health")).status_code == 200

    async with worker(redis_url, saying("x")) as fake:
        await eventually(seen)  # what was said of workers before may stand for half a second
        response = await keyed.request(method, path, json=fields or None, headers=bearer("elsewhere"))
        allowed = await keyed.request(method, path, json=fields or None, headers=bearer("free"))
    # The tiny model of these tests has no template.
    expected = 422 if "chat" in path else 200
    assert (response.status_code, allowed.status_code) == (404, expected), (response.text, allowed.text)
    assert "does not exist" in response.text
    assert len(fake.jobs) == (method == "POST" and "tokenize" not in path and "chat" not in path)


def _fields(path: str) -> tuple[str, ...]:
    if path.startswith("/v2"):
        return ("text_input",) if "generate" in path else ()
    if "chat" in path:
        return ("messages",)
    return ("prompt",) if path == "/v1/completions" else ("inputs",)


async def test_keys_follow_their_file(keyed: httpx.AsyncClient, node: WebNode, folder: Path) -> None:
    async def becomes(name: str, expected: int) -> None:
        deadline = time.monotonic() + 30
        while (await keyed.get("/info", headers=bearer(name))).status_code != expected:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    await becomes("free", 200)
    keys_file(folder, [name for name in KEYS if name != "free"])
    await becomes("free", 401)
    path = folder / "keys.json"
    path.write_text('{"keys": [{"name": "s3cret-x"')
    await until(lambda: "API keys stay as they were" in node.log_text())
    assert (await keyed.get("/info", headers=bearer("narrow"))).status_code == 200
    keys_file(folder, list(KEYS))
    await becomes("free", 200)
    assert "s3cret" not in node.log_text()


def test_a_bad_file_of_keys_is_an_error_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('keys = [{name = "a", secret = "s3cret", limit = 1}]')
    environment = os.environ | {"TGQ_API_KEYS_FILE": str(path), "MODEL_ID": "scripted", "PORT": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "ops.cli", "web"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"tgq: TGQ_API_KEYS_FILE ({path}): `keys.0.limit`: ")
    assert "s3cret" not in ended.stdout + ended.stderr


async def test_bodies_may_be_compressed_and_no_larger_for_that(client: httpx.AsyncClient) -> None:
    async def post(content: bytes, coding: str) -> httpx.Response:
        headers = {"content-type": "application/json", "content-encoding": coding}
        response = await client.post("/tokenize", content=content, headers=headers)
        check_answer(response)
        return response

    body = json.dumps({"inputs": "abc"}).encode()
    assert [token["text"] for token in (await post(gzip.compress(body), "gzip")).json()] == ["a", "b", "c"]
    assert (await post(gzip.compress(b"[" * 100_000_000), "gzip")).status_code == 413
    unknown = await post(body, "br")
    assert (unknown.status_code, unknown.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert (await post(body, "gzip")).status_code == 400


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"inputs": "x", "a": ' + b"[" * 900_000, 400),
        (b'{"inputs": "x", "a": ' + b"[" * 200 + b"]" * 200 + b"}", 400),
        (b'{"inputs": "x", "a": [' + b"{}," * 600_000 + b"{}]}", 400),
        (b'{"inputs": "x", "parameters": {"stop": [' + b"1," * 900_000 + b"1]}}", 422),
        (b'{"inputs": "x", "parameters": {"stop": [' + b'"",' * 600_000 + b'""]}}', 400),
        (json.dumps({"inputs": "x"} | {str(i): i for i in range(100_000)}).encode(), 400),
        (b'{"inputs": "\xff"}', 400),
        (b'\xef\xbb\xbf{"inputs": "x"}', 400),
        (b'{"inputs": "x", "inputs": "y"}', 400),
        (b'{"inputs": "\\ud800"}', 400),
    ],
    ids=["endless", "deep", "objects", "numbers", "texts", "keys", "utf8", "bom", "twice", "surrogate"],
)
async def test_bodies_that_would_cost_too_much_queue_nothing_and_stop_nobody(
    client: httpx.AsyncClient, redis_url: str, content: bytes, status: int
) -> None:
    async with worker(redis_url, saying("x")) as fake, httpx.AsyncClient(base_url=client.base_url, timeout=30) as other:
        odd = asyncio.create_task(
            client.post("/generate", content=content, headers={"content-type": "application/json"})
        )
        longest = 0.0
        while not odd.done():
            started = time.monotonic()
            assert (await other.get("/health")).status_code in (200, 503)
            longest = max(longest, time.monotonic() - started)
        response = await odd
    check_answer(response)
    assert response.status_code == status
    assert len(response.content) < 500
    assert longest < 5
    assert fake.jobs == {}


async def test_every_answer_has_its_request_s_id(client: httpx.AsyncClient, redis_url: str) -> None:
    json_type = {"content-type": "application/json"}
    async with worker(redis_url, saying("x")):
        answers = [
            await client.post("/generate", json={"inputs": "x"}, headers={"x-request-id": "a.b-c_1"}),
            await client.post("/generate_stream", json={"inputs": "x"}, headers={"x-request-id": "a.b-c_1"}),
            await client.post("/generate", json={"inputs": ""}, headers={"x-request-id": "a.b-c_1"}),
            await client.post("/generate", content=b"{", headers=json_type | {"x-request-id": "a.b-c_1"}),
            await client.post("/generate", content=b"", headers={"x-request-id": "a.b-c_1"}),
            await client.get("/nope", headers={"x-request-id": "a.b-c_1"}),
            await client.get("/generate", headers={"x-request-id": "a.b-c_1"}),
            await client.get("/metrics", headers={"x-request-id": "a.b-c_1"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 422, 400, 415, 404, 405, 200]
    assert {answer.headers["x-request-id"] for answer in answers} == {"a.b-c_1"}
    for odd in ("", "a b", "x" * 129, "é"):
        answer = await client.get("/info", headers={b"x-request-id": odd.encode()})
        assert len(answer.headers["x-request-id"]) == 32
