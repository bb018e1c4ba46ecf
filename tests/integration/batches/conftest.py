"""What the tests of the batch runner share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from common.settings import Settings
from tests.integration.batches.runners import Batches, batches, settings_for


@pytest.fixture
def settings(tmp_path: Path, redis_url: str) -> Settings:
    return settings_for(tmp_path, redis_url)


@pytest.fixture
async def here(settings: Settings) -> AsyncIterator[Batches]:
    async with batches(settings) as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runners write results down and look around more often than they need to."""
    monkeypatch.setattr("workers.batch.results.FEWEST_SECONDS", 0.05)
    monkeypatch.setattr("workers.batch.interruptions.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("workers.batch.runner._ASK_SECONDS", 0.05)
    # Left alone, structlog draws tracebacks with all variables, which takes longer than a lease.
    with structlog.testing.capture_logs():
        yield
