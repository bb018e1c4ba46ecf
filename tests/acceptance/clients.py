"""Prompts for the scripted model, and clients that check what they hear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

MODEL = "scripted"


def script(text: str, **fields: Any) -> str:
    """A prompt that has the scripted model say `text`; `fields` are the script's other ones."""
    return f"<<script {json.dumps({'text': text, **fields})}>>"


def body(prompt: str, max_new_tokens: int = 1000) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": max_new_tokens}}


@asynccontextmanager
async def http_client(url: str = "", timeout: float = 60.0) -> AsyncIterator[httpx.AsyncClient]:
    """A client with as many connections as there are requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False, verify=False) as client:
        yield client


async def generate(client: httpx.AsyncClient, prompt: str, *, url: str = "", max_new_tokens: int = 1000) -> str:
    """The whole answer's text."""
    response = await client.post(f"{url}/generate", json=body(prompt, max_new_tokens))
    assert response.status_code == 200, (response.status_code, response.text)
    return str(response.json()["generated_text"])


class Stream:
    """One `/generate_stream` request and what it has heard; closing it is leaving."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        """Of all tokens so far."""
        self.final: str | None = None
        """`generated_text` of the last event."""
        self.error: dict[str, Any] | None = None
        self._lines = response.aiter_lines()

    async def event(self) -> bool:
        """Take the next event; False at the end."""
        async for line in self._lines:
            if line.startswith("data: "):
                self._take(json.loads(line.removeprefix("data: ")))
                return True
        return False

    async def hear(self, events: int) -> None:
        for _ in range(events):
            assert await self.event(), f"the stream ended: {self.error or self.text!r}"

    async def finish(self) -> str:
        """Read to the end; the text, or "" when an error ended it."""
        while await self.event():
            pass
        return self.final or ""

    def _take(self, event: dict[str, Any]) -> None:
        assert self.final is None, "an event after the last one"
        assert self.error is None, "an event after an error"
        if "error" in event:
            self.error = event
            return
        if not event["token"]["special"]:
            self.text += event["token"]["text"]
        self.final = event["generated_text"]


@asynccontextmanager
async def open_stream(
    client: httpx.AsyncClient, prompt: str, *, url: str = "", max_new_tokens: int = 1000
) -> AsyncIterator[Stream]:
    """A stream whose first byte has arrived."""
    payload = body(prompt, max_new_tokens)
    async with client.stream("POST", f"{url}/generate_stream", json=payload) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, (response.status_code, response.text)
        yield Stream(response)


async def start_stream(client: httpx.AsyncClient, prompt: str, *, url: str = "", events: int = 1) -> LongStream:
    """A stream that has heard `events` events; leave or finish it."""
    stream = LongStream(client, prompt, url)
    await stream.start(events)
    return stream


class LongStream:
    """A stream that outlives the block it was opened in."""

    def __init__(self, client: httpx.AsyncClient, prompt: str, url: str) -> None:
        self._context = open_stream(client, prompt, url=url, max_new_tokens=3000)
        self.stream: Stream

    async def start(self, events: int) -> None:
        self.stream = await self._context.__aenter__()
        await self.stream.hear(events)

    async def leave(self) -> None:
        await self._context.__aexit__(None, None, None)

    async def finish(self) -> str:
        try:
            return await self.stream.finish()
        finally:
            await self.leave()


async def leave(task: asyncio.Task[Any]) -> None:
    """Let the client of a running request go away: its connection is closed."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), "it had ended"
