"""Reading a request's body, driven by hand as a server would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from falcon.asgi import Request
from falcon.testing import create_scope

from common.errors import BodyTimeout, PayloadTooLarge
from web import body


async def test_a_client_that_stops_sending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_SILENCE_SECONDS", 0.02)
    parts = [b'{"inputs":', b' "x"']

    async def receive() -> Mapping[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": True}
        return await asyncio.Future[Mapping[str, Any]]()

    scope = create_scope(
        method="POST",
        path="/generate",
        headers={"content-type": "application/json", "content-length": "20"},
    )
    with pytest.raises(BodyTimeout):
        await body.read_json_body(Request(scope, receive), limit=100)
    assert not parts


def sent(parts: AsyncIterator[bytes], **headers: str) -> Request:
    """A request whose body comes in `parts`."""

    async def receive() -> Mapping[str, Any]:
        part = await anext(parts, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    scope = create_scope(method="POST", path="/generate", headers={"content-type": "application/json"} | headers)
    return Request(scope, receive, first_event={"type": "http.request", "body": b"", "more_body": True})


async def test_a_client_that_sends_slowly_but_steadily_is_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one of silence: here the body takes longer than that altogether."""
    monkeypatch.setattr(body, "_SILENCE_SECONDS", 1.2)

    async def slowly() -> AsyncIterator[bytes]:
        for number in b"0123456789abcdef":
            await asyncio.sleep(0.1)
            yield bytes([number])

    assert await body.read_json_body(sent(slowly()), limit=16) == b"0123456789abcdef"


async def test_a_body_without_a_length_is_read_no_further_than_its_limit() -> None:
    taken = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            taken.append(b"1234")
            yield b"1234"

    with pytest.raises(PayloadTooLarge):
        await body.read_json_body(sent(endless()), limit=10)
    assert len(taken) == 3


async def test_the_body_is_read_whole_however_it_is_cut() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"{", b"", b'"a":1', b"}"):
            yield part

    assert await body.read_json_body(sent(parts()), limit=7) == b'{"a":1}'
    assert await body.read_json_body(sent(parts(), **{"content-length": "7"}), limit=7) == b'{"a":1}'
