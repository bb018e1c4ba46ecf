"""Compressed bodies."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from falcon.asgi import Request
from falcon.testing import create_scope

from common.errors import MalformedBody, PayloadTooLarge, TgqError, UnsupportedMediaType
from web.body import read_json_body


def request(content: bytes, coding: str | None, part: int = 1 << 20) -> Request:
    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(content), part):
            yield content[start : start + part]

    sent = parts()

    async def receive() -> Mapping[str, Any]:
        found = await anext(sent, None)
        return {"type": "http.request", "body": found or b"", "more_body": found is not None}

    headers = {"content-type": "application/json"} | ({"content-encoding": coding} if coding is not None else {})
    scope = create_scope(method="POST", path="/generate", headers=headers)
    return Request(scope, receive, first_event={"type": "http.request", "body": b"", "more_body": True})


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


TEXT = b'{"inputs": "' + bytes(range(97, 123)) * 8000 + b'"}'
PACKED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT),
    " GZip ": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "Deflate": raw_deflate(TEXT),
    "identity": TEXT,
}


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("part", [1, 7, 1000, 1 << 20])
async def test_compressed_bodies_however_they_are_cut(coding: str, part: int) -> None:
    part = max(part, len(PACKED[coding]) // 3000)
    assert await read_json_body(request(PACKED[coding], coding, part), limit=len(TEXT)) == TEXT
    with pytest.raises(PayloadTooLarge):
        await read_json_body(request(PACKED[coding], coding, part), limit=len(TEXT) - 1)


@pytest.mark.parametrize(
    ("content", "coding", "error"),
    [
        (b"x", "br", UnsupportedMediaType),
        (gzip.compress(gzip.compress(b"{}")), "gzip, gzip", UnsupportedMediaType),
        (b"{}", "gzip", MalformedBody),
        (b"{}", "deflate", MalformedBody),
        (b"", "gzip", MalformedBody),
        (PACKED["gzip"][:-1], "gzip", MalformedBody),
        (PACKED["deflate"][:100], "deflate", MalformedBody),
        (PACKED["gzip"][:50] + b"\0\0\0" + PACKED["gzip"][53:], "gzip", MalformedBody),
        (gzip.compress(b"{}") * 2, "gzip", MalformedBody),
        (gzip.compress(b"{}") + b"x", "gzip", MalformedBody),
    ],
    # Not the bytes: gzip's have the time in them, and tests in parallel must be called the same everywhere.
    ids=["unknown", "twice", "no gzip", "no deflate", "empty", "short gzip", "short deflate", "spoilt", "two", "more"],
)
@pytest.mark.parametrize("part", [1, 1 << 20])
async def test_bodies_that_cannot_be_unpacked(content: bytes, coding: str, error: type[TgqError], part: int) -> None:
    with pytest.raises(error):
        await read_json_body(request(content, coding, part), limit=1_000_000)


async def test_a_bomb_is_unpacked_no_further_than_the_limit_and_holds_nobody_up() -> None:
    bomb = zlib.compress(b"\0" * 500_000_000, 9)
    assert len(bomb) < 500_000
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    started = time.process_time()
    with pytest.raises(PayloadTooLarge):
        await read_json_body(request(bomb, "deflate"), limit=2_000_000)
    assert time.process_time() - started < 0.25  # all of it would take longer than a second
    task.cancel()
    assert turns > 10
