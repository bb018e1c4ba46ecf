"""A TCP proxy on the loopback address whose wire can be cut without a word, reset, or made slow."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_CHUNK = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards connections to a server, on an event loop in a thread of its own. Usable from any thread.

    While it is a `hole`, bytes vanish in both directions, nothing is closed, and new connections are taken and never
    answered. Connections that lost something are reset when it no longer is one: a real network does not go on behind a gap
    either. The port is the same over `stop()` and `start()`; in between, connections are refused.
    """

    def __init__(self, port: int, *, host: str = HOST, tls: ssl.SSLContext | None = None) -> None:
        """Nothing is started yet.

        Args:
            port: the server's; its `host` is this machine unless given.
            tls: speak TLS with clients, and plainly with the server.
        """
        self.delay = 0.0
        """Seconds each byte spends on the way, in both directions."""
        self.swallowed = 0
        """Bytes that vanished."""
        self.port = 0
        """Where it listens, once it has been started."""
        self._target = (host, port)
        self._tls = tls
        self._hole = False
        self._links: set[_Link] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """The address of the Redis server behind it, database 0."""
        return f"{'redis' if self._tls is None else 'rediss'}://{HOST}:{self.port}/0"

    @property
    def connections(self) -> int:
        """Clients that are connected now."""
        return len(self._links)

    @property
    def hole(self) -> bool:
        return self._hole

    @hole.setter
    def hole(self, value: bool) -> None:
        def change() -> None:
            self._hole = value
            for link in list(self._links):
                if not value and link.gap:
                    link.reset()

        self._call(change)

    def reset(self) -> None:
        """Reset every connection (RST), as a firewall or a dying machine does."""

        def change() -> None:
            for link in list(self._links):
                link.reset()

        self._call(change)

    def start(self) -> None:
        """Listen; raises `OSError` when the port is no longer free."""
        started = threading.Event()
        failure: list[OSError] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(started))
            except OSError as error:
                failure.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="tcp-proxy", daemon=True)
        self._thread.start()
        started.wait(10)
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._thread is not None and self._thread.is_alive():
            self._call(self._set_stop)
            self._thread.join(10)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, change: Callable[[], None]) -> None:
        """Run `change` on the loop's thread and wait until it is done."""
        if self._loop is None:
            return
        done = threading.Event()

        def run() -> None:
            change()
            done.set()

        with contextlib.suppress(RuntimeError):  # The loop has ended meanwhile.
            self._loop.call_soon_threadsafe(run)
            done.wait(5)

    def _set_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, HOST, self.port, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        try:
            await self._stop.wait()
        finally:
            server.close()
            for link in list(self._links):
                link.reset()
            if handlers := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(handlers, timeout=5)
            self._loop = self._stop = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), theirs)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class _Link:
    """One client and its connection to the server."""

    def __init__(
        self,
        proxy: TcpProxy,
        ours: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        theirs: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.gap = False
        """Something was lost here."""
        self._proxy = proxy
        self._ways = ((ours[0], theirs[1]), (theirs[0], ours[1]))
        self._over = asyncio.Event()

    def reset(self) -> None:
        for _, writer in self._ways:
            plug = writer.get_extra_info("socket")
            if plug is not None and not writer.transport.is_closing():
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        self._over.set()

    async def run(self) -> None:
        """Forward until one side closes and the other has heard of it, or until `reset()`."""
        tasks = [asyncio.create_task(self._forward(*way)) for way in self._ways]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in self._ways:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        last_due = 0.0
        while True:
            try:
                data = await reader.read(_CHUNK)
            except (OSError, ssl.SSLError):
                data = b""
            if self._proxy.hole:
                self.gap = True
                self._proxy.swallowed += len(data)
                if not data:
                    return  # The other side hears of it when the hole closes.
                continue
            now = loop.time()
            if self._proxy.delay or last_due > now:
                # Never before what was sent earlier, whatever the delay was then.
                last_due = max(now + self._proxy.delay, math.nextafter(last_due, math.inf))
                if data:
                    loop.call_at(last_due, self._write, writer, data)
                    continue
                await asyncio.sleep(last_due - now + 0.01)
            if not data:
                self._over.set()
                return
            self._write(writer, data)
            with contextlib.suppress(OSError):
                await writer.drain()

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._proxy.hole:
            self.gap = True
            self._proxy.swallowed += len(data)
        elif not writer.is_closing():
            writer.write(data)
