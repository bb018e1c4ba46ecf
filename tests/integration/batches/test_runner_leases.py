"""Several runners, and what one that stops, stands still or loses its lease leaves to the others."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from common.batches.objects import BatchObject, Counts
from common.batches.store import Claim
from common.settings import Settings
from ops.embedded_redis import EmbeddedRedis
from tests.integration.batches.runners import (
    TENANT,
    Batches,
    answer,
    batches,
    hold_after,
    requests,
    runner,
    settings_for,
    worker,
)
from tests.integration.client.fake_worker import until

pytestmark = pytest.mark.usefixtures("quick")
SHORT = 2.0
"""A lease that is waited for; all others outlast whatever makes this process stand still."""


async def whole(here: Batches, count: int, batch_id: str) -> None:
    """The batch is complete, each line once and with its own answer."""
    batch = await here.store.batch(TENANT, batch_id)
    assert (batch.status, batch.request_counts) == ("completed", Counts(count, count, 0))
    results = await here.results(batch.output_file_id)
    assert set(results) == {f"line {number}" for number in range(count)}
    usage = batch.usage
    assert usage is not None
    assert usage.output_tokens == 3 * count


async def test_one_that_stops_leaves_what_it_has_done(settings: Settings, here: Batches) -> None:
    async with worker(settings, hold_after(50), slots=8) as fake:
        async with runner(settings):
            batch = await here.create(requests(100))
            await until(lambda: fake.taken == 50 + 16)
        kept = await here.now(batch)
        assert (kept.status, kept.request_counts) == ("in_progress", Counts(100, 50, 0))
        fake.go.set()
        async with runner(settings):
            await here.ended(batch)
    await whole(here, 100, batch.id)
    assert fake.taken == 50 + 16 + 50


async def test_one_that_loses_its_lease_writes_nothing_more(
    tmp_path: Path, redis_url: str, here: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still for longer than its lease, in the middle of it, and another one takes over."""
    settings = settings_for(tmp_path, redis_url, batch_lease_seconds=SHORT)
    renewing = asyncio.Event()
    renewing.set()
    async with worker(settings, hold_after(30), slots=8) as fake, runner(settings) as first:
        renew = first._store.renew

        async def stand_still(claim: Claim) -> None:
            if renewing.is_set():
                await renew(claim)
            await renewing.wait()

        async def nothing(*_arguments: object) -> None:
            """What it has lost is not for itself to take over."""

        monkeypatch.setattr(first._store, "renew", stand_still)
        batch = await here.create(requests(80))
        await here.reaches(batch, "in_progress", done=30)
        monkeypatch.setattr(first._store, "claim", nothing)
        renewing.clear()
        async with runner(settings):
            await until(lambda: fake.taken == 30 + 16 + 16)
            fake.go.set()
            await here.ended(batch)
            renewing.set()
    await whole(here, 80, batch.id)


async def test_runners_share_the_batches(settings: Settings, here: Batches) -> None:
    async with worker(settings, answer, slots=16), runner(settings), runner(settings):
        made = [await here.create(requests(40)) for _ in range(5)]
        for batch in made:
            await here.ended(batch)
    for batch in made:
        await whole(here, 40, batch.id)


@pytest.mark.parametrize("step", ["put_file", "renew", "update"])
async def test_one_that_stops_while_results_are_put_together(
    settings: Settings, here: Batches, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its parts are there or gone, its file is there or not: the next one ends the batch all the same."""
    finalizing, standing = asyncio.Event(), asyncio.Event()
    async with worker(settings, answer), runner(settings) as first:
        store = first._store
        update, real = store.update, getattr(store, step)

        async def stand(*arguments: object) -> object:
            if finalizing.is_set():
                standing.set()
                await asyncio.Event().wait()
            return await real(*arguments)

        async def update_and_stand(claim: Claim, **changes: object) -> BatchObject:
            if step == "update" and changes.get("status") == "completed":
                await stand()
            if changes.get("status") == "finalizing":
                finalizing.set()
            return await update(claim, **changes)

        if step != "update":
            monkeypatch.setattr(store, step, stand)
        monkeypatch.setattr(store, "update", update_and_stand)
        batch = await here.create(requests(20))
        async with asyncio.timeout(60):
            await standing.wait()
    assert (await here.now(batch)).status == "finalizing"
    async with runner(settings):
        await here.ended(batch)
    await whole(here, 20, batch.id)
    assert here.parts() == []


async def test_redis_that_is_away_for_longer_than_a_lease(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "redis", append_only=True) as server:
        settings = settings_for(tmp_path, server.url, batch_lease_seconds=SHORT)
        async with batches(settings) as here, worker(settings, hold_after(30), slots=8) as fake, runner(settings):
            batch = await here.create(requests(60))
            await until(lambda: fake.taken == 30 + 16)
            server.kill()
            await asyncio.sleep(1.5 * settings.batch_lease_seconds)
            server.start()
            fake.go.set()
            deadline = time.monotonic() + 60
            while True:
                with suppress(RedisError):
                    if not (await here.now(batch)).open:
                        break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            await whole(here, 60, batch.id)
