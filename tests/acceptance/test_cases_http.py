"""Cases from other servers' bug reports, replayed: bodies, browsers, methods, connections, keys and ids."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ops.local_service import LocalService, Part
from tests.acceptance.native import (
    GENERATING,
    TIMEOUT,
    another_web_node,
    checked,
    error_of,
    log_lines,
    post,
    script,
    text_of,
    until,
    web_series,
)

JSON = {"content-type": "application/json"}
KEY = "open-sesame-5f2c"
BROWSER = "https://app.example"
LIMIT = 10_000


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


@pytest.fixture(scope="module")
def guarded(scripted_service: LocalService) -> Iterator[tuple[str, Part]]:
    """A web node with a key, one allowed origin and a small limit for bodies."""
    settings = {"API_KEY": KEY, "CORS_ALLOW_ORIGIN": f"{BROWSER}, https://two.example", "PAYLOAD_LIMIT": str(LIMIT)}
    with another_web_node(scripted_service, settings) as node:
        yield node


class Connection:
    """HTTP/1.1 by hand: what no client library would send."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=30)

    def close(self) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def post(self, path: str, body: bytes, *headers: bytes) -> tuple[int, bytes]:
        head = [
            f"POST {path} HTTP/1.1".encode(),
            f"Host: {self._host}".encode(),
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(body),
            *headers,
        ]
        self.send(b"\r\n".join(head) + b"\r\n\r\n" + body)
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a length."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += self._more()
        return int(lines[0].split()[1]), body

    def stays_open(self, seconds: float) -> bool:
        """Whether the server neither says nor closes anything for so long."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return not readable

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        assert data, "the server closed the connection"
        return data


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    found = Connection(url)
    yield found
    found.close()


# -- bodies


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
def test_c32_bodies_over_the_limit(url: str, path: str) -> None:
    """A body over the limit is refused with 413 and JSON, announced or not; the limit is in `/info`."""
    limit = httpx.get(f"{url}/info").json()["payload_limit"]
    assert limit == 2_000_000

    def pieces(size: int) -> Iterator[bytes]:
        for start in range(0, size, 65536):
            yield b" " * min(65536, size - start)

    for size in (limit + 1, 3_000_000):
        for content in (b" " * size, pieces(size)):
            response = checked(httpx.post(url + path, content=content, headers=JSON, timeout=TIMEOUT))
            assert response.status_code == 413
            assert str(limit) in error_of(response)["error"]
    # A body of exactly the limit is read: it is no JSON.
    assert checked(httpx.post(url + path, content=b" " * limit, headers=JSON, timeout=TIMEOUT)).status_code == 400


def test_c32_a_limit_of_ones_own(guarded: tuple[str, Part]) -> None:
    """The limit is a setting."""
    url, _ = guarded
    authorized = {"authorization": f"Bearer {KEY}"}
    body = json.dumps({"inputs": "x" * LIMIT}).encode()
    response = checked(httpx.post(f"{url}/tokenize", content=body, headers=JSON | authorized))
    assert response.status_code == 413
    assert httpx.get(f"{url}/info").json()["payload_limit"] == LIMIT


def test_c32_a_client_that_waits_for_leave_to_send(guarded: tuple[str, Part]) -> None:
    """`Expect: 100-continue`: a body that is too long is refused before it is sent, another one is asked for."""
    url, _ = guarded
    body = json.dumps({"inputs": script("one")}).encode()
    head = "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    head += f"Authorization: Bearer {KEY}\r\nContent-Length: %d\r\n\r\n"
    waiting = Connection(url)
    waiting.send((head % len(body)).encode())
    assert waiting.answer()[0] == 100
    waiting.send(body)
    assert waiting.answer() == (200, b'{"generated_text":"one"}')
    waiting.close()
    for refused in (head % (LIMIT + 1), head.replace(KEY, "wrong") % 10, head.replace("json", "xml") % 10):
        waiting = Connection(url)
        waiting.send(refused.encode())
        assert waiting.answer()[0] in (401, 413, 415)
        waiting.close()


# -- browsers


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,last-event-id",
}


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
def test_c34_browsers_of_any_origin(url: str, path: str) -> None:
    """By default any origin may call: the preflight says so, and every answer, errors and streams too."""
    origin = {"origin": "https://anyone.example"}
    preflight = httpx.options(url + path, headers=origin | PREFLIGHT)
    assert preflight.status_code in (200, 204)
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    allowed = {name.strip() for name in preflight.headers["access-control-allow-headers"].lower().split(",")}
    assert {"authorization", "content-type", "last-event-id"} <= allowed
    for inputs, status in ((script("x"), 200), ("", 200 if path == "/tokenize" else 422), (None, 422)):
        response = post(url + path, inputs, headers=origin)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == "*"


def test_c34_browsers_of_some_origins(guarded: tuple[str, Part]) -> None:
    """With origins set, they alone may call, and caches know that answers differ; a preflight needs no key."""
    url, _ = guarded
    for origin, allowed in ((BROWSER, BROWSER), ("https://two.example", "https://two.example"), ("https://x", None)):
        headers = {"origin": origin}
        preflight = httpx.options(f"{url}/generate", headers=headers | PREFLIGHT)
        assert preflight.headers.get("access-control-allow-origin") == allowed
        refused = post(f"{url}/generate", "x", headers=headers)
        served = post(f"{url}/generate_stream", script("x"), headers=headers | {"authorization": f"Bearer {KEY}"})
        assert (refused.status_code, served.status_code) == (401, 200)
        missing = checked(httpx.get(f"{url}/nope", headers=headers))
        for response in (refused, served, missing):
            assert response.headers.get("access-control-allow-origin") == allowed
            assert "origin" in response.headers["vary"].lower()


# -- methods and paths


def test_c35_methods_and_paths(url: str) -> None:
    """What is not there is 404 or 405 in JSON; nothing a client puts into a path becomes a metric's label."""
    for path in ("/health", "/ping", "/info", "/metrics", "/"):
        head = httpx.head(url + path)
        assert (head.status_code, head.content) == (200, b"")
    before = web_series(url)
    for method, path, status in (
        ("GET", "/generate", 405),
        ("GET", "/generate_stream", 405),
        ("GET", "/tokenize", 405),
        ("HEAD", "/generate", 405),
        ("POST", "/health", 405),
        ("POST", "/info", 405),
        ("DELETE", "/", 405),
        ("GET", "/nope", 404),
        ("POST", "/generate/more", 404),
        ("GET", "/%00", 404),
        ("GET", "/%ff%fe", 404),
        ("GET", "/health?x=" + "y" * 500, 200),
        ("GET", "/../etc/passwd", 404),
    ):
        response = httpx.request(method, url + path)
        assert response.status_code == status, (method, path)
        assert ("allow" in response.headers) is (status == 405)
        if method != "HEAD" and status != 200:
            assert set(checked(response).json()) == {"error", "error_type"}
    assert httpx.get(f"{url}/info/").status_code == 200
    assert text_of(post(f"{url}/generate/", script("slash"))) == "slash"
    doubled = Connection(url)
    status, _ = doubled.post("//generate", json.dumps({"inputs": script("x")}).encode())
    doubled.close()
    assert status in (200, 404)
    for n in range(50):
        httpx.get(f"{url}/junk-{n}")
    assert web_series(url) == before


def test_c36_a_connection_that_rests(connection: Connection) -> None:
    """A pooled connection is still good after it rested for longer than common servers keep theirs."""
    body = json.dumps({"inputs": script("one")}).encode()
    assert connection.post("/generate", body) == (200, b'{"generated_text":"one"}')
    assert connection.stays_open(6)
    assert connection.post("/generate", body) == (200, b'{"generated_text":"one"}')


def test_c36_errors_keep_the_connection(connection: Connection) -> None:
    """After a refused request the connection goes on with the next one."""
    for body in (b"{", b"{}", b'{"inputs": ""}'):
        assert connection.post("/generate", body)[0] in (400, 422)
    assert connection.post("/generate", json.dumps({"inputs": script("one")}).encode())[0] == 200


# -- keys


def test_c37_keys(guarded: tuple[str, Part]) -> None:
    """Generating and tokenizing want the key; how the service is stays open; the key is never logged."""
    url, part = guarded
    wrong = [{}, *({"authorization": value} for value in ("Bearer x", KEY, f"Basic {KEY}", "Bearer", f"Bearer {KEY}x"))]
    wrong.append({"authorization": f"Bearer {KEY.upper()}"})
    for path in (*GENERATING, "/tokenize"):
        for headers in wrong:
            response = post(url + path, script("x"), headers=headers, stream=True)
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert error_of(response)["error_type"] == "unauthorized"
        for scheme in ("Bearer", "bearer"):
            assert post(url + path, script("x"), headers={"authorization": f"{scheme} {KEY}"}).status_code == 200
    for path in ("/", "/health", "/ping", "/info", "/metrics"):
        response = checked(httpx.get(url + path))
        assert response.status_code == 200
        assert KEY not in response.text
    assert KEY not in part.tail(10**9)


# -- request ids


def test_c39_request_ids(scripted_service: LocalService) -> None:
    """An id of plain characters is echoed and logged, everything else is replaced; two may have the same."""
    url, (part, *_) = scripted_service.url, scripted_service.web
    for path in ("/generate", "/generate_stream"):
        for given, echoed in (("abc", True), ("A-b_c.9" * 10, True), ("a b", False), ("x" * 129, False), ("{}", False)):
            answers = [post(url + path, script("x"), headers={"x-request-id": given}) for _ in range(2)]
            ids = [response.headers["x-request-id"] for response in answers]
            assert (ids == [given, given]) is echoed
            if not echoed:
                assert ids[0] != ids[1]
                assert all(len(new) == 32 for new in ids)
            assert all("x-request-id" not in response.text for response in answers)
            for new in ids:
                until(partial(log_lines, part, f'"request_id": "{new}"'), "the log line")
    assert post(f"{url}/generate", "").headers["x-request-id"] != post(f"{url}/generate", "").headers["x-request-id"]


async def test_c39_the_same_id_twice_at_once(url: str) -> None:
    """Ids are the client's affair: two requests with one id run side by side and get their own answers."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, headers={"x-request-id": "same"}) as client:

        async def ask(text: str) -> Any:
            return (await client.post("/generate", json={"inputs": script(text, step_ms=50)})).json()

        texts = [f"this is {n} of 8" for n in range(8)]
        assert await asyncio.gather(*map(ask, texts)) == [{"generated_text": text} for text in texts]


@pytest.mark.parametrize("value", [b"y" * 1_000_000, b"a\rb", b"a\x00b", b"a\r\nx-evil: 1", "é".encode()])
def test_c39_ids_that_break_headers(url: str, connection: Connection, value: bytes) -> None:
    """Long ids, control characters and line ends neither break the server nor come back."""
    body = json.dumps({"inputs": script("one")}).encode()
    try:
        status, answer = connection.post("/generate", body, b"X-Request-Id: " + value)
    except (ConnectionError, AssertionError):
        status, answer = 400, b""  # Closed in the middle of what is no HTTP.
    assert status in (200, 400, 431)
    assert b"evil" not in answer
    assert post(f"{url}/generate", script("fine")).json() == {"generated_text": "fine"}
