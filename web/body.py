"""Reads the body of a request, within its limit and only if it is JSON."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator

from falcon.asgi import Request

from common.errors import BodyTimeout, PayloadTooLarge, UnsupportedMediaType
from web.content_coding import Inflater

_JSON = re.compile(r"application/([^;/\s]+\+)?json\s*(;|$)", re.IGNORECASE)
_SILENCE_SECONDS = 30.0
"""A client that sends no further part of its body for this long is given up."""


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body's bytes, unpacked.

    Raises:
        UnsupportedMediaType: the content type is neither `application/json` nor `application/*+json`.
        TgqError: see `body_pieces`.
    """
    if not _JSON.match(request.content_type or ""):
        raise UnsupportedMediaType
    body = bytearray()  # and no list: parts may be single bytes
    async for piece in body_pieces(request, limit):
        body += piece
    return bytes(body)


async def body_pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body's bytes as they come, unpacked.

    Raises:
        UnsupportedMediaType: they are compressed in a way that is not known here.
        BodyTimeout: the client stopped sending.
        PayloadTooLarge: more than `limit` bytes, announced, sent or unpacked.
        MalformedBody: it cannot be unpacked.
    """
    coding = (request.get_header("content-encoding") or "identity").strip().lower()
    inflater = Inflater(coding) if coding != "identity" else None
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    parts = aiter(request.stream)
    left = limit
    coming = math.inf if request.content_length is None else request.content_length
    while coming > 0 and (part := await _next(parts)):
        coming -= len(part)
        for piece in (part,) if inflater is None else inflater.pieces(part):
            left -= len(piece)
            if left < 0:
                raise _too_large(limit)
            yield piece
            if inflater is not None:
                await asyncio.sleep(0)  # a small part may become a large body
    if inflater is not None:
        rest = inflater.finish()
        if len(rest) > left:
            raise _too_large(limit)
        yield rest


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    """What came next, however little; nothing at the end."""
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            return await anext(parts, b"")
    except TimeoutError:
        raise BodyTimeout from None


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than the {limit} bytes this server takes")
