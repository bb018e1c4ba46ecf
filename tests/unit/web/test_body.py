"""Reading a request's body, driven by hand as a server would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from falcon.asgi import Request
from falcon.testing import create_scope

from common.errors import BodyTimeout
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
