"""What the web side concludes from the workers it sees."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.keys import Keys
from common.live_workers import LiveWorkers
from common.redis_clients import async_redis
from common.settings import Settings
from common.wire import ModelCard, WorkerRecord


@pytest.fixture
def workers() -> LiveWorkers:
    settings = Settings.of()
    return LiveWorkers(async_redis(settings), Keys("t"), settings)


def _record(*adapters: str, loaded: bool = True) -> WorkerRecord:
    card = ModelCard(
        model_id="m",
        dtype="torch.float32",
        device_type="cpu",
        max_total_tokens=1,
        max_batch_total_tokens=1,
        max_batch_size=1,
        adapters=list(adapters),
    )
    return WorkerRecord(
        id="w",
        pid=1,
        engine_pid=None,
        host="h",
        model="m",
        state="ready" if loaded else "starting",
        started_at=0.0,
        card=card if loaded else None,
    )


async def test_only_adapters_that_every_worker_has_are_known(
    workers: LiveWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def adapters(*records: WorkerRecord) -> frozenset[str] | None:
        async def seen() -> list[WorkerRecord]:
            return list(records)

        monkeypatch.setattr(workers, "all_records", seen)
        return await workers.adapters("m")

    assert await adapters(_record("a", "b"), _record("b", "c"), _record(loaded=False)) == frozenset("b")
    assert await adapters(_record()) == frozenset()
    assert await adapters(_record(loaded=False)) is None


async def test_without_redis_nothing_is_known(workers: LiveWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> list[WorkerRecord]:
        raise RedisConnectionError

    monkeypatch.setattr(workers, "all_records", away)
    assert await workers.adapters() is None


async def test_a_model_is_remembered_as_long_as_a_request_for_it_may_wait(
    workers: LiveWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    live = [_record("a")]

    async def look(*_: object) -> list[WorkerRecord]:
        return live

    monkeypatch.setattr("common.live_workers.time.monotonic", lambda: now)
    monkeypatch.setattr("common.live_workers.live_workers", look)
    assert (await workers.recent_cards()).keys() == {"m"}
    live = []
    for later, names in ((1.0, {"m"}), (300.0, {"m"}), (300.5, set())):
        now = 1000.0 + later
        assert (await workers.recent_cards()).keys() == names
        assert await workers.cards() == {}
    card = await workers.card("m")
    assert card is not None
    assert card.adapters == ["a"]
