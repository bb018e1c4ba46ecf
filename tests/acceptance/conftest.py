"""Whole services as real processes: one with the scripted model, one with the real one, shared by the tests that only use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.clients import http_client
from tests.acceptance.observation import Observer
from tests.acceptance.pair import SETTINGS


@pytest.fixture(scope="session")
def scripted_service() -> Iterator[LocalService]:
    """One web node and one worker with the scripted model. Tests that break or fill it start their own."""
    with LocalService({"MODEL_ID": "scripted"}) as service:
        yield service


@pytest.fixture(scope="session")
def real_service() -> Iterator[LocalService]:
    """One web node and one worker with the default model on the CPU."""
    with LocalService({"TGQ_DEVICE": "cpu"}) as service:
        yield service


@pytest.fixture(scope="session")
def batch_service() -> Iterator[LocalService]:
    """One web node, one worker with the scripted model and one batch runner."""
    with LocalService({"MODEL_ID": "scripted"}, batch_workers=1) as service:
        yield service


@pytest.fixture(scope="session")
def pair_of_workers() -> Iterator[LocalService]:
    """Use `two_workers`."""
    with LocalService(SETTINGS, workers=2) as service:
        yield service


@pytest.fixture
def two_workers(pair_of_workers: LocalService) -> LocalService:
    """One web node and two workers with the scripted model and few slots, of which the test may end one."""
    for worker in [worker for worker in pair_of_workers.workers if not worker.alive]:
        pair_of_workers.workers.remove(worker)
        pair_of_workers.add_worker()
    pair_of_workers.wait_ready()
    return pair_of_workers


# For modules that have a `service` of their own.


@pytest.fixture
async def client(service: LocalService) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(service.url) as client:
        yield client


@pytest.fixture
def seen(service: LocalService) -> Iterator[Observer]:
    with Observer(service) as observer:
        yield observer
