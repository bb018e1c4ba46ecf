"""Reads the body of a request, within its limit and only if it is JSON."""

from __future__ import annotations

import asyncio
import re

from falcon.asgi import Request

from common.errors import BodyTimeout, PayloadTooLarge, UnsupportedMediaType

_JSON = re.compile(r"application/([^;/\s]+\+)?json\s*(;|$)", re.IGNORECASE)
_DISCARD_SECONDS = 2.0
_SILENCE_SECONDS = 30.0
"""A client that sends no further part of its body for this long is given up."""


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body's bytes.

    Raises:
        UnsupportedMediaType: the content type is neither `application/json` nor `application/*+json`.
        BodyTimeout: the client stopped sending.
        PayloadTooLarge: more than `limit` bytes, announced or sent.
    """
    if not _JSON.match(request.content_type or ""):
        raise UnsupportedMediaType
    if (request.content_length or 0) > limit:
        if request.get_header("expect") is None:  # else the client waits for leave to send, and gets none
            await _discard(request, limit)
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while chunk := await _read(request):
        size += len(chunk)
        if size > limit:
            chunks.clear()
            await _discard(request, limit)
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


async def _read(request: Request) -> bytes:
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            return await request.stream.read(65536)
    except TimeoutError:
        raise BodyTimeout from None


async def _discard(request: Request, limit: int) -> None:
    """Read on for a moment without keeping anything: a client that is still sending would not see the answer."""
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            size = 0
            while size < 4 * limit and (chunk := await request.stream.read(65536)):
                size += len(chunk)
    except TimeoutError:
        pass


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than the {limit} bytes this server takes")
