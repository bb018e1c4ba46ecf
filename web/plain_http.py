"""What servers pass on and the framework does not cope with: absolute request targets, WebSocket handshakes."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from web.disconnect import ASGIApp, Receive, Scope, Send

_ORIGIN = re.compile(rb"https?://[^/]*", re.IGNORECASE)


class PlainHttp:
    """ASGI wrapper around an application for HTTP alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()  # `websocket.connect`
            await send({"type": "websocket.close"})  # before it was accepted: servers answer 403
            return
        if scope["type"] == "http":
            _strip_origin(scope)
        await self._app(scope, receive, send)


def _strip_origin(scope: Scope) -> None:
    """Make a path of an absolute target, `http://host/path` (RFC 9112, section 3.2.2)."""
    if scope["path"].startswith("/"):
        return
    raw: bytes = scope.get("raw_path") or b""
    if origin := _ORIGIN.match(raw):
        scope["raw_path"] = raw[origin.end() :] or b"/"
        scope["path"] = unquote_to_bytes(scope["raw_path"]).decode("utf-8", "replace")
