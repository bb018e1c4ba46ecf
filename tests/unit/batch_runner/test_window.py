"""How many sequences a runner has under way."""

from __future__ import annotations

import asyncio

import pytest

from workers.batch.window import Window


async def entered(window: Window, sequences: int = 1) -> asyncio.Task[None]:
    task = asyncio.create_task(window.enter(sequences))
    await asyncio.sleep(0)
    return task


async def test_it_follows_the_workers() -> None:
    window = Window(1000)
    assert window.limit == 8
    window.aim(64)
    assert window.limit == 128
    window.aim(0)
    assert window.limit == 8
    window.aim(10_000)
    assert window.limit == 1000


async def test_first_come_first_served() -> None:
    window = Window(2)
    await window.enter(2)
    big, small = await entered(window, 2), await entered(window, 1)
    window.leave(1)
    await asyncio.sleep(0)
    assert not small.done()  # it would fit, and it is not its turn
    window.leave(1)
    await asyncio.sleep(0)
    assert big.done()
    assert not small.done()
    window.leave(2)
    await small
    assert window.used == 1


async def test_what_never_fits_goes_alone() -> None:
    window = Window(4)
    await window.enter(1)
    huge = await entered(window, 100)
    assert not huge.done()
    window.leave(1)
    await huge
    assert window.used == 100


async def test_who_leaves_the_line_takes_nothing_along() -> None:
    window = Window(1)
    await window.enter(1)
    first, second = await entered(window), await entered(window)
    first.cancel()
    await asyncio.sleep(0)
    window.leave(1)
    await second
    assert window.used == 1


async def test_a_turn_that_comes_while_its_owner_is_cancelled_goes_on() -> None:
    window = Window(1)
    await window.enter(1)
    first, second = await entered(window), await entered(window)
    window.leave(1)
    first.cancel()  # its turn is there, but it has not run yet
    await second
    assert window.used == 1
    assert first.cancelled()


async def test_refusals_halve_it_and_answers_bring_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("workers.batch.window.time.monotonic", lambda: now)
    window = Window(1000)
    window.aim(32)
    window.crowded()
    window.crowded()  # of the same moment
    assert window.limit == 32
    now += 1
    window.crowded()
    assert window.limit == 16
    for _ in range(20):
        now += 1
        window.crowded()
    assert window.limit == 1
    before = 0
    while window.limit < 64:
        window.answered()
        before += 1
    assert 64 < before < 64 * 64
