"""Lists in the order their members were made in: ids begin with their time, and a sorted set of equal scores has its members
in the order of strings. A page begins after an id, whether that is still there or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import redis.asyncio

_AT_ONCE = 1000


async def ids_after(
    redis_client: redis.asyncio.Redis, key: str, after: str | None, order: Literal["asc", "desc"], wanted: int
) -> AsyncIterator[list[str]]:
    """All ids behind `after`, or from the begin, some at a time and at first about as many as are wanted."""
    descending = order == "desc"
    last = "+" if descending else "-"
    if after is not None:
        last = f"({after}"
    while True:
        found: Any = await redis_client.zrange(
            key,
            last,
            "-" if descending else "+",
            desc=descending,
            bylex=True,
            offset=0,
            num=min(wanted, _AT_ONCE),
        )
        if not found:
            return
        ids = [one.decode() for one in found]
        yield ids
        last = f"({ids[-1]}"
