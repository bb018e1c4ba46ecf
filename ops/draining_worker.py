"""gunicorn's ASGI worker, stopping as soon as its last request is over, with the backlog it was given.

gunicorn 27 closes its sockets first of all when it stops, so that a load balancer meets a refused connection before it has
heard of the stop. Here the application hears of it at once and goes on answering, readiness with 503, until its last
request is over; every answer closes its connection, as gunicorn sees to by itself once a process is not `alive`.
It counts open connections, not running requests, when it drains: a client's idle keep-alive connection would
hold a stopping web process for the whole grace period. Idle connections are closed here when the stop begins.
It sets no limit to the time a new connection takes for its first request, nor to that which a closing one takes for the
rest of its answer: silent clients would fill a process up, and hold it when it stops.
It also hands its sockets to asyncio without the backlog, which then is 100: a burst of clients would be reset.
"""

from __future__ import annotations

import asyncio
import signal
import weakref
from typing import ClassVar

from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers import gasgi

FIRST_REQUEST_SECONDS = 60.0
"""A connection whose first request is not there by then, its headers complete, is closed. Later ones are kept alive."""
LAST_BYTES_SECONDS = 30.0
"""A client that was sent all it gets has this long to take what its connection still holds."""
ENDING_SECONDS = 3.0
"""What is left of a stop once its limit is reached: for the last errors, and for the application to leave Redis."""
_TURN_SECONDS = 0.05
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


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
        self.known.discard(self)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self._awaiting_request and not self._finishing_calls

    def close_if_idle(self) -> None:
        if self.idle:
            self._keepalive_timeout()


class DrainingWorker(gasgi.ASGIWorker):  # type: ignore[misc]  # gunicorn has no types
    """Restores the listen backlog at its first sign of life; lets the application drain before it stops.

    The application has a `drain` (see `web.drain`).
    """

    _backlog_restored = False
    _told_at = 0.0

    def init_process(self) -> None:
        # The loop's handlers hear nothing before it runs: what a worker is told while it loads waits until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        # The worker looks its protocol up in its module, once for each connection.
        gasgi.ASGIProtocol = _KnownProtocol
        super().init_process()

    async def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        await super()._serve()

    def notify(self) -> None:
        super().notify()
        if self.servers and not self._backlog_restored:
            self._backlog_restored = True
            for listener in self.sockets:
                listener.sock.listen(self.cfg.backlog)

    def handle_exit_signal(self) -> None:
        if self.alive:
            self._told_at = self.loop.time()
            self.asgi.drain.begin()
        super().handle_exit_signal()

    async def _shutdown(self) -> None:
        if not self._quick_shutdown:
            await self._drain()
        for server in self.servers:
            server.close()
        _close_idle()
        # What is left has had its time: only the last bytes are waited for.
        self.cfg.set("graceful_timeout", 1)
        await super()._shutdown()

    async def _drain(self) -> None:
        drain = self.asgi.drain
        drain.begin()  # also when it was the master that went
        begin = self._told_at or self.loop.time()
        _close_idle()
        while not self._quick_shutdown:
            lasted = self.loop.time() - begin
            if lasted >= drain.notice and all(connection.idle for connection in _KnownProtocol.known):
                return
            if lasted >= drain.limit:
                drain.end_requests()
                return
            self.notify()
            await asyncio.sleep(_TURN_SECONDS)


def _close_idle() -> None:
    for connection in list(_KnownProtocol.known):
        connection.close_if_idle()
