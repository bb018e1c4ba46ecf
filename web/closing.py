"""Streams of answers that end with their request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self


class Closing:
    """A generator that the framework closes when its client has gone: others it leaves to be collected."""

    def __init__(self, generator: AsyncGenerator[bytes]) -> None:
        self._generator = generator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._generator)

    async def close(self) -> None:
        await self._generator.aclose()
