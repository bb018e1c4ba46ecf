"""gunicorn's ASGI worker, stopping as soon as its last request is over, with the backlog it was given.

gunicorn 27 counts open connections, not running requests, when it drains: a client's idle keep-alive connection would
hold a stopping web process for the whole grace period. Idle connections are closed here when the stop begins.
It sets no limit to the time a new connection takes for its first request, nor to that which a closing one takes for the
rest of its answer: silent clients would fill a process up, and hold it when it stops.
It also hands its sockets to asyncio without the backlog, which then is 100: a burst of clients would be reset.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import ClassVar

from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers import gasgi

FIRST_REQUEST_SECONDS = 60.0
"""A connection whose first request is not there by then, its headers complete, is closed. Later ones are kept alive."""
LAST_BYTES_SECONDS = 30.0
"""A client that was sent all it gets has this long to take what its connection still holds."""


class _KnownProtocol(ASGIProtocol):  # type: ignore[misc]  # gunicorn has no types
    """A connection its worker can find again."""

    _abort_handle: asyncio.TimerHandle | None = None
    known: ClassVar[weakref.WeakSet[_KnownProtocol]] = weakref.WeakSet()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.known.add(self)
        # The keep-alive timer, which is let go once headers are complete, is not used before the first request.
        self._keepalive_handle = self.worker.loop.call_later(FIRST_REQUEST_SECONDS, self._keepalive_timeout)

    def _close_transport(self) -> None:
        open_until_now = not self._closed
        super()._close_transport()
        if open_until_now:
            self._abort_handle = self.worker.loop.call_later(LAST_BYTES_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_handle is not None:
            self._abort_handle.cancel()
        super().connection_lost(exc)

    def close_if_idle(self) -> None:
        if self._awaiting_request and not self._finishing_calls:
            self._keepalive_timeout()


class DrainingWorker(gasgi.ASGIWorker):  # type: ignore[misc]  # gunicorn has no types
    """Restores the listen backlog at its first sign of life; closes idle connections before it waits for the others."""

    _backlog_restored = False

    def init_process(self) -> None:
        # The worker looks its protocol up in its module, once for each connection.
        gasgi.ASGIProtocol = _KnownProtocol
        super().init_process()

    def notify(self) -> None:
        super().notify()
        if self.servers and not self._backlog_restored:
            self._backlog_restored = True
            for listener in self.sockets:
                listener.sock.listen(self.cfg.backlog)

    async def _shutdown(self) -> None:
        for server in self.servers:
            server.close()
        for connection in list(_KnownProtocol.known):
            connection.close_if_idle()
        await super()._shutdown()
