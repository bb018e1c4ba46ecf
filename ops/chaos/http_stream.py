"""One HTTP/1.1 request on a connection of its own, read as it comes: who drives faults must see exactly what was said when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Address = tuple[str, int]

CONNECT_SECONDS = 5.0
_HEAD_BYTES = 65_536


class NotConnected(Exception):
    """The node refuses connections, or let go of this one before it said a word: any client may ask again."""


class ConnectionCut(Exception):
    """The connection broke in the middle of an answer."""


class HttpAnswer:
    """An answer whose head has arrived."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        """By lower-case name."""
        self._reader = reader

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ConnectionCut: it did not come whole.
        """
        return b"".join([part async for part in self._parts()])

    async def events(self) -> AsyncIterator[bytes]:
        """The data of each server-sent event; comments are passed over.

        Raises:
            ConnectionCut: the stream has no proper end.
        """
        rest = b""
        async for part in self._parts():
            *frames, rest = (rest + part).split(b"\n\n")
            for frame in frames:
                for line in frame.split(b"\n"):
                    if line.startswith(b"data:"):
                        yield line.removeprefix(b"data:").removeprefix(b" ")
        if rest:
            raise ConnectionCut(f"the stream ends within an event: {rest[:80]!r}")

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            if self.headers.get("transfer-encoding", "").lower() != "chunked":
                yield await self._reader.readexactly(int(self.headers.get("content-length", "0")))
                return
            while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionCut(type(error).__name__) from error


@asynccontextmanager
async def post(
    address: Address, path: str, payload: bytes, *, request_id: str = "", receive_buffer: int | None = None
) -> AsyncIterator[HttpAnswer]:
    """POST JSON; leaving the block closes the connection, whatever was read of the answer.

    Args:
        receive_buffer: bytes of the socket's buffer; small for clients whose slowness the server is to feel.

    Raises:
        NotConnected: see there.
        ConnectionCut: the answer's head broke off.
    """
    reader, writer = await _connect(address, receive_buffer)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nX-Request-Id: {request_id}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        yield await _read_head(reader)
    finally:
        # Not closed with what is unsent or unread in order: the other side is to notice.
        writer.transport.abort()


async def _connect(address: Address, receive_buffer: int | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    try:
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, address)
            return await asyncio.open_connection(sock=connection, limit=_HEAD_BYTES)
    except (OSError, TimeoutError) as error:
        connection.close()
        raise NotConnected(type(error).__name__) from error
    except asyncio.CancelledError:
        connection.close()
        raise


async def _read_head(reader: asyncio.StreamReader) -> HttpAnswer:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ConnectionCut("within the head") from error
        raise NotConnected("closed without a word") from error
    except OSError as error:
        raise NotConnected(type(error).__name__) from error
    status, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return HttpAnswer(int(status.split()[1]), headers, reader)
