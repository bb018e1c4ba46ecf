"""What the metrics tell of batches, from what the store keeps."""

from __future__ import annotations

from common.batches.objects import BatchObject, BatchRequest, Counts, FileObject, new_batch_id, new_file_id
from common.batches.overview import batch_families, open_batches
from common.batches.store import BatchStore
from common.keys import Keys
from common.redis_clients import async_redis
from common.settings import Settings

NOW = 1_800_000_000


async def test_open_batches_of_all_callers_are_told_of_once(redis_url: str) -> None:
    settings = Settings.of(redis_url=redis_url)
    keys = Keys(settings.key_prefix)
    async with async_redis(settings) as client:
        store = BatchStore(client, keys, settings)
        for tenant, expires_at in (("a", NOW + 500), ("b", NOW + 300)):
            file = FileObject(id=new_file_id(), bytes=1, created_at=NOW, filename="f", purpose="batch")
            await store.put_file(tenant, file)
            batch = BatchObject(
                id=new_batch_id(),
                endpoint="/v1/chat/completions",
                input_file_id=file.id,
                completion_window="24h",
                created_at=NOW - 100,
                expires_at=expires_at,
                request_counts=Counts(total=10, completed=3, failed=1),
            )
            await store.create(tenant, batch, BatchRequest())
        assert [batch.status for batch in await open_batches(client, keys)] == ["validating"] * 2

        claim = await store.claim("runner", 10)
        assert claim is not None
        await store.update(claim, status="in_progress")
        found = await open_batches(client, keys)
        assert sorted(batch.status for batch in found) == ["in_progress", "validating"]

    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in batch_families(found, NOW)
        for sample in family.samples
    }
    assert samples == {
        ("tgq_batches", "validating"): 1,
        ("tgq_batches", "in_progress"): 1,
        ("tgq_batches", "finalizing"): 0,
        ("tgq_batches", "cancelling"): 0,
        ("tgq_batch_lines", "waiting"): 12,
        ("tgq_batch_lines", "completed"): 6,
        ("tgq_batch_lines", "failed"): 2,
        ("tgq_batch_oldest_seconds",): 100,
        ("tgq_batch_expires_seconds",): 300,
    }


async def test_without_batches_nothing_expires(redis_url: str) -> None:
    settings = Settings.of(redis_url=redis_url)
    async with async_redis(settings) as client:
        assert await open_batches(client, Keys(settings.key_prefix)) == []
    assert {family.name for family in batch_families([], NOW)} == {
        "tgq_batches",
        "tgq_batch_lines",
        "tgq_batch_oldest_seconds",
    }
