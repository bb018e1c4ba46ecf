"""Reads the body of a request, within its limit and only if it is JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from falcon.asgi import Request

from common.errors import BodyTimeout, PayloadTooLarge, UnsupportedMediaType

_JSON = re.compile(r"application/([^;/\s]+\+)?json\s*(;|$)", re.IGNORECASE)
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
        raise _too_large(limit)
    parts = aiter(request.stream)
    body = bytearray()  # and no list: parts may be single bytes
    while part := await _next(parts):
        if len(body) + len(part) > limit:
            raise _too_large(limit)
        body += part
    return bytes(body)


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    """What came next, however little; nothing at the end."""
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            return await anext(parts, b"")
    except TimeoutError:
        raise BodyTimeout from None


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than the {limit} bytes this server takes")
