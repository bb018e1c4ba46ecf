"""Loops that outlive their errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0


async def keep_running(run: Callable[[], Awaitable[None]], name: str) -> None:
    """Run `run()` until cancelled; when it ends or fails, log that and start it again after a second."""
    while True:
        try:
            await run()
        except Exception:
            # A task boundary: without this loop every open stream of the process would hang.
            log.exception("%s failed and is started again", name)
        await asyncio.sleep(_PAUSE_SECONDS)


async def every(seconds: float, action: Callable[[], Awaitable[None]], name: str) -> None:
    """Await `action()` every `seconds` until cancelled; its errors are logged."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await action()
        except Exception:
            # A task boundary: one bad turn must not end the watch over all streams.
            log.exception("%s failed", name)


async def stop_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    Cancels again and again: Python 3.11's `wait_for`, which redis-py sends commands with, loses a cancellation that
    comes in the moment its wait is over.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)
