"""The framework inside its wrappers, driven by hand as a server would: odd requests and odd clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import falcon
import pytest
from falcon.asgi import App, Request, Response
from falcon.testing import create_scope
from pydantic import SecretStr
from structlog.testing import capture_logs

from common.api_keys import KeyRing
from common.settings import Settings
from common.tokenizer import Encoding
from web import body
from web.disconnect import DisconnectWatch, RequestLifetime, Scope
from web.errors import add_error_handlers
from web.middleware.api_key import ApiKeys
from web.middleware.known_methods import KnownMethods
from web.plain_http import PlainHttp
from web.resources.resource import Resource
from web.resources.tokenize import Tokenize
from web.services import Services


class Echo(Resource):
    protected = True

    async def on_get(self, request: Request, response: Response) -> None:
        response.text = request.path

    async def on_post(self, request: Request, response: Response) -> None:
        response.data = await self.read(request)

    async def on_put(self, request: Request, response: Response) -> None:
        raise falcon.HTTPInvalidParam("must be a number", "n")


class Exchange:
    """One request and what came of it."""

    def __init__(self, *parts: bytes, send_timeout: float = 60.0, key: str | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.scope: Scope = {}
        self.reading = asyncio.Event()
        self.reading.set()
        self._parts = list(parts)
        app: App[Request, Response] = App()
        app.add_middleware(KnownMethods())
        settings = Settings.of(api_key=SecretStr(key) if key is not None else None)
        app.add_middleware(ApiKeys(KeyRing(settings), settings))
        add_error_handlers(app, settings)

        async def tokenize(text: str, *, special_tokens: bool) -> Encoding:
            count = int(text)
            return Encoding(list(range(count)), [(0, 1)] * count)

        async def in_thread(work: Callable[[], object]) -> object:
            return work()

        validator = SimpleNamespace(tokenize=tokenize, in_thread=in_thread)

        async def find(name: None, key: object) -> object:
            return SimpleNamespace(model=SimpleNamespace(validator=validator))

        models = SimpleNamespace(find=find)
        services = cast(Services, SimpleNamespace(settings=SimpleNamespace(payload_limit=100), models=models))
        app.add_route("/echo", Echo(services))
        app.add_route("/tokenize", Tokenize(services))
        self._app = PlainHttp(DisconnectWatch(app, send_timeout=send_timeout))

    async def run(self, method: str, path: str, *headers: tuple[bytes, bytes], **scope: Any) -> None:
        self.scope = create_scope(method="GET", path="/")
        self.scope |= {"method": method, "path": path, "raw_path": path.encode(), "headers": headers} | scope
        async with asyncio.timeout(10):
            await self._app(self.scope, self._receive, self._send)

    async def _receive(self) -> Mapping[str, Any]:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}
        return await asyncio.Future[Mapping[str, Any]]()

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            await self.reading.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize("announced", [(b"content-length", b"50"), (b"transfer-encoding", b"chunked")])
async def test_a_body_that_is_announced_and_never_sent(
    monkeypatch: pytest.MonkeyPatch, announced: tuple[bytes, bytes]
) -> None:
    monkeypatch.setattr(body, "_SILENCE_SECONDS", 0.02)
    monkeypatch.setattr("web.disconnect._DISCARD_SECONDS", 0.02)
    for path, status, kind in (("/echo", 408, "timeout"), ("/nope", 404, "not_found")):
        exchange = Exchange()
        await exchange.run("POST", path, JSON, announced)
        assert (exchange.status, json.loads(exchange.content)["error_type"]) == (status, kind)


async def test_a_method_nobody_knows() -> None:
    exchange = Exchange(b"")
    with capture_logs() as logs:
        await exchange.run("FOO", "/echo")
    assert exchange.status == 405
    assert json.loads(exchange.content)["error_type"] == "method_not_allowed"
    assert exchange.headers[b"allow"] == b"GET, POST, PUT, OPTIONS"
    assert logs == []
    known = Exchange(b"")
    await known.run("DELETE", "/echo")
    assert (known.status, known.headers[b"allow"]) == (405, exchange.headers[b"allow"])


async def test_a_fault_of_the_client_that_the_framework_finds_is_none_of_ours() -> None:
    exchange = Exchange(b"")
    with capture_logs() as logs:
        await exchange.run("PUT", "/echo")
    assert exchange.status == 400
    assert json.loads(exchange.content)["error_type"] == "validation"
    assert logs == []


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://x/echo", "/echo"),
        ("HTTPS://x:8080/ech%6f", "/echo"),
        ("http://a%2Fb/echo", "/echo"),
        ("http://x", None),
        ("ftp://x/echo", None),
        ("/http://x/echo", None),
    ],
)
async def test_absolute_targets(target: str, path: str | None) -> None:
    exchange = Exchange(b"")
    await exchange.run("GET", target)
    assert exchange.status == (200 if path else 404)
    if path:
        assert exchange.content.decode() == path


async def test_websockets_are_refused() -> None:
    exchange = Exchange(b"")
    await exchange.run("GET", "/echo", type="websocket")
    assert exchange.sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize("key", ["secret", "clé", "ключ", "voilà"])
async def test_keys_of_any_characters(key: str) -> None:
    async def status(value: bytes) -> int:
        exchange = Exchange(b"{}", key=key)
        await exchange.run("POST", "/echo", JSON, (b"content-length", b"2"), (b"authorization", value))
        return exchange.status

    assert await status(b"Bearer " + key.encode()) == 200
    assert await status(b"bearer  " + key.encode() + b" ") == 200
    for wrong in (
        b"Bearer " + key.encode()[:-1],
        key.encode(),
        b"Bearer \xff",
        b"Bearer",
        b"",
        b"Basic " + key.encode(),
    ):
        assert await status(wrong) == 401


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 5000])
async def test_tokens_are_one_array_with_a_length(count: int) -> None:
    content = b'{"inputs": "%d"}' % count
    exchange = Exchange(content)
    await exchange.run("POST", "/tokenize", JSON, (b"content-length", b"%d" % len(content)))
    assert (exchange.status, exchange.headers[b"content-type"]) == (200, b"application/json")
    assert [token["id"] for token in json.loads(exchange.content)] == list(range(count))
    assert int(exchange.headers[b"content-length"]) == len(exchange.content)


async def test_a_client_that_does_not_take_its_tokens_is_dropped() -> None:
    content = b'{"inputs": "5000"}'
    exchange = Exchange(content, send_timeout=0.05)
    exchange.reading.clear()
    await exchange.run("POST", "/tokenize", JSON, (b"content-length", b"%d" % len(content)))
    assert RequestLifetime.of(exchange.scope).gone == "client_too_slow"
    assert len(exchange.content) < 100
