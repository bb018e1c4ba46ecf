from __future__ import annotations

import asyncio

import pytest

from web.silence import Silence


async def wait(silence: Silence, what: asyncio.Event) -> bool:
    """True when the event came, False when the silence was interrupted."""
    silence.begin()
    try:
        await what.wait()
    except asyncio.CancelledError:
        if not silence.interrupted():
            raise
        return False
    silence.end()
    return True


async def test_a_silent_wait_is_interrupted_again_and_again_and_the_task_goes_on() -> None:
    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    with Silence(0.01) as silence:
        assert [await wait(silence, never) for _ in range(3)] == [False] * 3
        assert await wait(silence, now)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_busy_task_is_left_alone() -> None:
    with Silence(0.01) as silence:
        silence.begin()
        silence.end()
        await asyncio.sleep(0.05)


async def test_no_limit_no_interruption() -> None:
    event = asyncio.Event()
    with Silence(None) as silence:
        asyncio.get_running_loop().call_later(0.05, event.set)
        assert await wait(silence, event)


async def test_somebody_elses_cancellation_is_not_swallowed() -> None:
    waiting = asyncio.Event()

    async def reader() -> None:
        with Silence(60) as silence:
            waiting.set()
            await wait(silence, asyncio.Event())

    task = asyncio.create_task(reader())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancellation() -> None:
    async def reader() -> None:
        with Silence(60) as silence:
            silence.begin()
            silence._waiting_since = 0.0
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(silence._check)
            asyncio.get_running_loop().call_soon(task.cancel)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not silence.interrupted():
                    raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(reader())
