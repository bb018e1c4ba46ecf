"""HTTP/1.1 for measuring: one connection, one request at a time, and each read of the answer stamped as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

MOST_HEAD = 64 << 10
MOST_REFUSAL = 16 << 10
"""Bytes kept of an answer that is no stream."""


class BadHttp(Exception):
    """The server does not speak HTTP/1.1 as it is written."""


class Lost(Exception):
    """The connection ended before the answer did."""

    def __init__(self, *, answered: bool) -> None:
        """
        Args:
            answered: whether a part of the answer had come.
        """
        super().__init__("the connection ended before the answer did")
        self.answered = answered


class Answer:
    """Status and headers, the body as long as it is no stream of events."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.refusal = bytearray()

    @property
    def streams(self) -> bool:
        return self.status == 200 and self.headers.get("content-type", "").startswith("text/event-stream")


class Connection(asyncio.Protocol):
    """Sends requests that are ready bytes; `post` again when the last answer has ended and `reusable` is true."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._lost: BaseException | None = None
        self._closed = False
        self._done: asyncio.Future[Answer] | None = None
        self._on_body: Callable[[bytes, float], None] = _ignore
        self._feed: Callable[[float], None] = self._head
        self._buffer = bytearray()
        self._answer = Answer()
        self._left = 0
        self.used = False

    @property
    def reusable(self) -> bool:
        return not self._closed and self._done is None and not self._buffer

    async def post(self, request: bytes, on_body: Callable[[bytes, float], None]) -> Answer:
        """Send a request and wait for the end of its answer.

        Args:
            on_body: gets each part of the body of a stream, and when it came.

        Raises:
            Lost, BadHttp: there is no whole answer.
        """
        if self._closed or self._transport is None:
            raise Lost(answered=False)
        self._answer, self._feed, self._on_body = Answer(), self._head, on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._done, self.used = None, True

    def close(self) -> None:
        """End the connection at once; the server notices that nobody listens any more."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._done is None or self._done.done():
            # What nobody has asked for: this connection is not used again.
            self.close()
            return
        self._buffer += data
        try:
            self._feed(now)
        except BadHttp as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._done is None or self._done.done():
            return
        if exc is None and self._feed == self._until_close:
            self._finish()
        else:
            self._done.set_exception(Lost(answered=self._answer.status != 0 or bool(self._buffer)))

    def _finish(self) -> None:
        if self._answer.headers.get("connection", "").lower() == "close" or self._feed == self._until_close:
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)

    def _fail(self, error: BadHttp) -> None:
        self.close()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    # -- what comes next of an answer ------------------------------------------------------------------------------------

    def _head(self, now: float) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEAD:
                raise BadHttp(f"the answer's head has more than {MOST_HEAD} bytes")
            return
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise BadHttp("the answer does not begin as HTTP/1.1 does")
        status = int(rest[:3])
        if status < 200:
            self._head(now)
            return
        self._answer.status = status
        for line in lines:
            name, _, value = line.partition(":")
            self._answer.headers[name.strip().lower()] = value.strip()
        self._body(now)

    def _body(self, now: float) -> None:
        headers = self._answer.headers
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._feed = self._chunked
        elif "content-length" in headers:
            if not headers["content-length"].isdigit():
                raise BadHttp("the answer's content-length is no number")
            self._left = int(headers["content-length"])
            self._feed = self._counted
        elif self._answer.status in (204, 304):
            self._finish()
            return
        else:
            self._feed = self._until_close
        self._feed(now)

    def _chunked(self, now: float) -> None:
        buffer = self._buffer
        while True:
            line = buffer.find(b"\r\n")
            if line < 0:
                if len(buffer) > MOST_HEAD:
                    raise BadHttp("a chunk of the answer has no size")
                return
            try:
                size = int(bytes(buffer[:line]).partition(b";")[0], 16)
            except ValueError:
                raise BadHttp("a chunk of the answer has no size") from None
            if size == 0:
                # Trailers, if there are any, end with an empty line.
                end = buffer.find(b"\r\n\r\n", line)
                if end >= 0:
                    del buffer[: end + 4]
                    self._finish()
                return
            start = line + 2
            if len(buffer) < start + size + 2:
                return
            self._part(bytes(buffer[start : start + size]), now)
            del buffer[: start + size + 2]

    def _counted(self, now: float) -> None:
        part = bytes(self._buffer[: self._left])
        del self._buffer[: len(part)]
        self._left -= len(part)
        self._part(part, now)
        if not self._left:
            self._finish()

    def _until_close(self, now: float) -> None:
        part = bytes(self._buffer)
        self._buffer.clear()
        self._part(part, now)

    def _part(self, part: bytes, now: float) -> None:
        if self._answer.streams:
            self._on_body(part, now)
        else:
            self._answer.refusal += part[: MOST_REFUSAL - len(self._answer.refusal)]


def _ignore(part: bytes, now: float) -> None:
    pass
