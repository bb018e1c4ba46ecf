"""What may come between a batch and its completion."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Literal

from redis.exceptions import RedisError

from common.batches.store import BatchStore, Claim

LOOK_SECONDS = 0.5
"""How soon a runner notices."""

Interruption = Literal["cancelled", "expired", "stopped"]


class Interrupted(Exception):
    def __init__(self, by: Interruption) -> None:
        self.by: Interruption = by
        super().__init__(by)


class Interruptions:
    """Of one claim."""

    def __init__(self, store: BatchStore, claim: Claim, stopping: asyncio.Event) -> None:
        """
        Args:
            stopping: set when this process is to end.
        """
        self._store = store
        self._claim = claim
        self._stopping = stopping
        batch = claim.batch
        self.expires_at = float(batch.expires_at or batch.created_at)
        """Unix seconds."""

    async def stop(self) -> None:
        """
        Raises:
            Interrupted: this process is to end.
        """
        await self._stopping.wait()
        raise Interrupted("stopped")

    async def any(self) -> None:
        """
        Raises:
            Interrupted: this process is to end, or the batch is cancelled, or its window is over.
            UnknownBatch: it is gone.
        """
        while True:
            if self._stopping.is_set():
                raise Interrupted("stopped")
            with suppress(RedisError):
                if (await self._store.current(self._claim)).status == "cancelling":
                    raise Interrupted("cancelled")
            if time.time() >= self.expires_at:
                raise Interrupted("expired")
            await self.stopped_within(LOOK_SECONDS)

    async def stopped_within(self, seconds: float) -> bool:
        """Wait so long, or until this process is to end; returns whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True
