"""Notices a client that went away and ends its request at once, streaming or not, under any ASGI server.

The framework does not: Falcon iterates `resp.stream` to its end and looks at `resp.sse`'s client only between events, and
a responder that has not answered yet learns nothing at all. So this wrapper reads `receive` ahead once the body is read.
When the client is gone, or reads nothing for too long, it cancels the application's task; whatever the request holds is
let go as the task unwinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, Literal

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY = "tgq.lifetime"
_DISCARD_SECONDS = 2.0

Cause = Literal["client_closed", "client_too_slow"]


class RequestLifetime:
    """One request: what it holds, and whether its client still wants the answer."""

    def __init__(self, receive: Receive, send: Send, send_timeout: float, headers: Headers = ()) -> None:
        names = {name for name, value in headers if value != b"0" or name != b"content-length"}
        has_body = not names.isdisjoint({b"content-length", b"transfer-encoding"})
        self.stack = ExitStack()
        """Closed when the request is over, however it ends. Callbacks must not block."""
        self.gone: Cause | None = None
        """Why nobody wants the answer any more."""
        self._server_receive = receive
        self._server_send = send
        self._send_timeout = send_timeout
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending_since: float | None = None
        self._complete = False
        self._first_event_due = has_body
        # With `Expect: 100-continue` the client waits for leave, which the server gives when it is asked for the body.
        self._body_coming = has_body and b"expect" not in names

    @staticmethod
    def of(scope: Scope) -> RequestLifetime:
        lifetime: RequestLifetime = scope[_KEY]
        return lifetime

    def detach(self) -> ExitStack:
        """Hand over what the request holds, and will hold: whoever calls closes it, and may outlive the client."""
        self.stack = self.stack.pop_all()
        return self.stack

    def watch(self) -> None:
        """Watch for the client's leaving from here on; the request's body must have been read."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
            self._arm()

    async def receive(self) -> Mapping[str, Any]:
        if self._first_event_due:
            # Falcon takes a first event before it looks at the request. That must not wait for a body, which may never
            # come, or may have to be refused before the client is given leave to send it.
            self._first_event_due = False
            return {"type": "http.request", "body": b"", "more_body": True}
        self._body_coming = True
        message = await self._server_receive()
        self._body_coming = bool(message.get("more_body"))
        if message["type"] == "http.disconnect":
            self._leave("client_closed")
            await asyncio.sleep(0)  # where the cancellation arrives
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            # Some servers report a disconnect to whoever still listens after the last byte.
            self._complete = True
        self._sending_since = monotonic()
        try:
            await self._server_send(message)
        except OSError:
            # ASGI 2.4: the connection is closed. The error itself unwinds the task.
            self.gone = self.gone or "client_closed"
            raise
        self._sending_since = None

    async def discard_body(self) -> None:
        """After the answer, take for a moment what is left of the body, keeping nothing.

        A client that is still sending would not see the answer if the connection was closed under it.
        """
        if self._complete and self._body_coming and self._watcher is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DISCARD_SECONDS):
                    while (await self._server_receive()).get("more_body"):
                        pass

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def caused(self) -> bool:
        """Whether a cancellation that arrived was this lifetime's own, and nobody else's."""
        return self.gone is not None and (self._task is None or self._task.uncancel() <= self._cancelling)

    async def _watch(self) -> None:
        while True:
            message = await self._server_receive()
            if message["type"] == "http.disconnect":
                if not self._complete:
                    self._leave("client_closed")
                return

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._send_timeout / 4, self._check_progress)

    def _check_progress(self) -> None:
        since = self._sending_since
        if since is not None and monotonic() - since > self._send_timeout:
            self._leave("client_too_slow")
        else:
            self._arm()

    def _leave(self, cause: Cause) -> None:
        if self.gone is None and self._task is not None:
            self.gone = cause
            self._task.cancel()


class DisconnectWatch:
    """ASGI wrapper that gives every HTTP request a `RequestLifetime`.

    Args:
        app: the application.
        send_timeout: seconds a client may take nothing of an answer before it counts as gone.
    """

    def __init__(self, app: ASGIApp, *, send_timeout: float) -> None:
        self._app = app
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lifetime = RequestLifetime(receive, send, self._send_timeout, scope.get("headers", ()))
        scope[_KEY] = lifetime
        try:
            with lifetime.stack:
                await self._app(scope, lifetime.receive, lifetime.send)
            await lifetime.discard_body()
        except asyncio.CancelledError:
            if not lifetime.caused():
                raise
        except OSError:
            if lifetime.gone is None:
                raise
        finally:
            lifetime.end()
