"""Work that goes on only as long as something beside it does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from common.background import stop_tasks

T = TypeVar("T")


async def beside(work: Coroutine[Any, Any, T], *others: asyncio.Task[None]) -> T:
    """Do the work. When another task ends first, cancel the work and raise what that one raised.

    The others go on when the work is done.
    """
    working = asyncio.create_task(work)
    try:
        await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        for other in others:
            if other.done():
                await other
        raise RuntimeError("what was to go on beside the work has ended")
    finally:
        await dismiss(working)


async def dismiss(task: asyncio.Task[Any]) -> None:
    """Cancel a task whose outcome does not count any more, and wait until it has ended."""
    await stop_tasks([task])
    if not task.cancelled():
        task.exception()  # Else it would be logged that nobody asked.
