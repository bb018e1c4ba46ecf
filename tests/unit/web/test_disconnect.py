"""The disconnect wrapper, driven by hand as a server would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from web import disconnect
from web.disconnect import ASGIApp, DisconnectWatch, RequestLifetime, Scope


class Server:
    """The server's side of one request."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.sent: list[Mapping[str, Any]] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.answered = asyncio.Event()
        self.broken = False

    async def receive(self) -> Mapping[str, Any]:
        return await self.incoming.get()

    async def send(self, message: Mapping[str, Any]) -> None:
        if self.broken:
            raise OSError("closed")
        await self.writable.wait()
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.answered.set()

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})


class App:
    """Reads the body, watches, then waits or answers."""

    def __init__(self, answer: list[dict[str, Any]] | None = None) -> None:
        self.released: list[str] = []
        self.lifetime: RequestLifetime | None = None
        self.waiting = asyncio.Event()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        lifetime = self.lifetime = RequestLifetime.of(scope)
        lifetime.stack.callback(self.released.append, "permit")
        while (await receive()).get("more_body"):
            pass
        lifetime.watch()
        self.waiting.set()
        if self._answer is None:
            await asyncio.Event().wait()
        for message in self._answer or []:
            await send(message)


def start(app: ASGIApp, server: Server, **options: Any) -> asyncio.Task[None]:
    headers = options.pop("headers", [])
    wrapped = DisconnectWatch(app, send_timeout=options.pop("send_timeout", 60.0))

    async def serve() -> None:
        await wrapped({"type": "http", "headers": headers}, server.receive, server.send)

    return asyncio.create_task(serve())


BODY = {"type": "http.request", "body": b"{}", "more_body": False}
START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"x", "more_body": True}
LAST = {"type": "http.response.body", "body": b"x"}


async def test_a_client_that_leaves_while_nothing_was_sent_ends_the_request() -> None:
    app, server = App(), Server()
    task = start(app, server)
    server.incoming.put_nowait(BODY)
    await app.waiting.wait()
    assert app.released == []
    server.leave()
    await asyncio.wait_for(task, 5)
    assert app.released == ["permit"]
    assert app.lifetime is not None
    assert app.lifetime.gone == "client_closed"


async def test_a_client_that_leaves_in_the_middle_of_its_body_never_reaches_the_app() -> None:
    app, server = App(), Server()
    task = start(app, server)
    server.incoming.put_nowait(BODY | {"more_body": True})
    server.leave()
    await asyncio.wait_for(task, 5)
    assert not app.waiting.is_set()
    assert app.released == ["permit"]


async def test_a_client_that_leaves_while_a_write_is_blocked_ends_the_request() -> None:
    app, server = App([START, PART, PART]), Server()
    server.writable.clear()
    task = start(app, server)
    server.incoming.put_nowait(BODY)
    await app.waiting.wait()
    server.leave()
    await asyncio.wait_for(task, 5)
    assert app.released == ["permit"]


async def test_a_client_that_takes_nothing_for_too_long_counts_as_gone() -> None:
    app, server = App([START, PART]), Server()
    server.writable.clear()
    task = start(app, server, send_timeout=0.05)
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(task, 5)
    assert app.lifetime is not None
    assert app.lifetime.gone == "client_too_slow"


async def test_a_server_that_raises_on_a_closed_connection_ends_the_request_quietly() -> None:
    app, server = App([START, PART]), Server()
    server.broken = True
    task = start(app, server)
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(task, 5)
    assert app.lifetime is not None
    assert app.lifetime.gone == "client_closed"


async def test_a_disconnect_after_the_last_byte_is_no_disconnect() -> None:
    app, server = App([START, PART, LAST]), Server()
    task = start(app, server)
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(task, 5)
    assert server.sent == [START, PART, LAST]
    assert app.lifetime is not None
    assert app.lifetime.gone is None
    assert app.released == ["permit"]


async def test_a_cancellation_from_outside_is_passed_on() -> None:
    app, server = App(), Server()
    task = start(app, server)
    server.incoming.put_nowait(BODY)
    await app.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.released == ["permit"]


LENGTH = [(b"content-length", b"2")]
CHUNKED = [(b"transfer-encoding", b"chunked")]
BODIES = pytest.mark.parametrize("headers", [LENGTH, CHUNKED])


class Refusal:
    """Answers after a first event, as the framework does for what it need not read."""

    def __init__(self) -> None:
        self.first: Mapping[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.first = await receive()
        await send(START)
        await send(LAST)


@BODIES
async def test_an_answer_does_not_wait_for_a_body_that_was_announced(headers: list[tuple[bytes, bytes]]) -> None:
    app, server = Refusal(), Server()
    task = start(app, server, headers=headers)
    await asyncio.wait_for(server.answered.wait(), 5)
    assert app.first == {"type": "http.request", "body": b"", "more_body": True}
    assert not task.done()  # what still comes is taken, so that the client sees the answer
    server.incoming.put_nowait(BODY | {"more_body": True})
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(task, 5)
    assert server.incoming.empty()


async def test_a_body_that_never_comes_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "_DISCARD_SECONDS", 0.02)
    server = Server()
    await asyncio.wait_for(start(Refusal(), server, headers=LENGTH), 5)
    assert server.sent == [START, LAST]


async def test_a_client_that_got_no_leave_to_send_is_not_asked_for_its_body() -> None:
    server = Server()
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(start(Refusal(), server, headers=[*LENGTH, (b"expect", b"100-continue")]), 5)
    assert not server.incoming.empty()


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]])
async def test_the_first_event_of_a_request_without_a_body_is_the_servers(headers: list[tuple[bytes, bytes]]) -> None:
    app, server = Refusal(), Server()
    first = {"type": "http.request", "body": b"", "more_body": False}
    server.incoming.put_nowait(first)
    await asyncio.wait_for(start(app, server, headers=headers), 5)
    assert app.first == first


@BODIES
async def test_an_announced_body_is_read_whole_and_leaving_then_is_noticed(headers: list[tuple[bytes, bytes]]) -> None:
    app, server = App(), Server()
    task = start(app, server, headers=headers)
    server.incoming.put_nowait(BODY | {"more_body": True})
    server.incoming.put_nowait(BODY)
    await asyncio.wait_for(app.waiting.wait(), 5)
    server.leave()
    await asyncio.wait_for(task, 5)
    assert app.released == ["permit"]


@BODIES
async def test_leaving_instead_of_sending_the_announced_body_ends_the_request(
    headers: list[tuple[bytes, bytes]],
) -> None:
    app, server = App(), Server()
    task = start(app, server, headers=headers)
    server.leave()
    await asyncio.wait_for(task, 5)
    assert not app.waiting.is_set()
    assert app.released == ["permit"]
