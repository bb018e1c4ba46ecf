"""Forms with files, and what a test looks for after sending one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

LINES = b'{"custom_id": "a"}\n{"custom_id": "\xc3\xa9"}\n'
MEBIBYTE = 2**20


def form(name: str = "in.jsonl", content: bytes = LINES, **expires_after: str) -> dict[str, Any]:
    expiry = {f"expires_after[{name}]": value for name, value in expires_after.items()}
    return {"files": {"file": (name, content)}, "data": {"purpose": "batch", **expiry}}


def stored(storage: Path) -> set[str]:
    """Names of all that is in storage, unfinished or not."""
    return {file.name for file in (storage / "files").rglob("*") if file.is_file()}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


async def large_form(mebibytes: int, *, then: bytes = b"\r\n--x--\r\n", pause: float = 0) -> AsyncIterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n'
    for _ in range(mebibytes * 16):
        yield b"\n" * (MEBIBYTE // 16)
        await asyncio.sleep(pause)
    yield then


FORM = {"content-type": "multipart/form-data; boundary=x"}
