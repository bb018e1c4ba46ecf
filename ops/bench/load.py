"""A load generator that costs little: raw sockets, one task for all streams, bytes looked at only after the clock stopped."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop

PATIENCE = 600.0
"""Seconds after which a run is given up."""


class BadAnswer(Exception):
    """A stream did not hold what it had to; a figure made of it would mean nothing."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """One stream, or an answer in one piece: times in seconds from the start of the run, and what it was sent."""

    first_byte: float
    finished: float
    body: bytes

    @property
    def events(self) -> list[bytes]:
        return [frame for frame in self.body.split(b"\n\n") if b"data: " in frame]


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, started: float) -> None:
        self._request = request
        self._started = started
        self._parts: list[bytes] = []
        self._first: float | None = None
        self.result: asyncio.Future[StreamResult] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._first is None and (b"data: " in data):
            self._first = time.perf_counter() - self._started
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        now = time.perf_counter() - self._started
        raw = b"".join(self._parts)
        head, _, body = raw.partition(b"\r\n\r\n")
        if b"content-type: application/json" in head.lower():
            self._first = now
        if exc or not head.startswith(b"HTTP/1.1 200") or self._first is None:
            self.result.set_exception(BadAnswer(f"{exc or head[:200]!r} {body[:300]!r}"))
            return
        if b"transfer-encoding: chunked" in head.lower():
            body = _dechunk(body)
        self.result.set_result(StreamResult(self._first, now, body))


def _dechunk(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


def run_streams(
    url: str, bodies: Sequence[dict[str, object]], starts: Sequence[float] | None = None
) -> list[StreamResult]:
    """POST all bodies to `url`, each on its own connection, and read every answer to its end.

    Args:
        starts: when each one is sent, in seconds from the start of the run; all at once when not given.

    Raises:
        BadAnswer: a stream was refused or broken.
    """
    return uvloop.run(_run_streams(url, bodies, starts or [0.0] * len(bodies)))


async def _run_streams(url: str, bodies: Sequence[dict[str, object]], starts: Sequence[float]) -> list[StreamResult]:
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()

    async def run_one(body: dict[str, object], start: float) -> StreamResult:
        payload = json.dumps(body).encode()
        request = (
            f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        ).encode() + payload
        if start:
            await asyncio.sleep(started + start - time.perf_counter())
        stream = _Stream(request, started)
        await loop.create_connection(lambda: stream, str(address.hostname), int(address.port or 80))
        return await stream.result

    running = asyncio.gather(*(run_one(body, start) for body, start in zip(bodies, starts, strict=True)))
    return list(await asyncio.wait_for(running, PATIENCE))
