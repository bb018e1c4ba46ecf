"""Fixtures every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings

from ops.embedded_redis import EmbeddedRedis

# Nobody the tests speak to has a certificate of a known authority. To read all of those takes a client longer than its request,
# and httpx makes a client for every `httpx.get`.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Engines that each take every core spin against one another. Set before torch is loaded, here or in a child.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TGQ_ENGINE_THREADS", "1")

# On a busy machine all input is slow to make. The same input in every run: whether a change is good is no matter of chance.
settings.register_profile("patient", suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=True)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A real server for the whole run of one process of tests. Tests that kill or freeze a server start one of their own."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """URL of the shared server, emptied for this test."""
    with redis.Redis.from_url(redis_server.url, socket_timeout=5) as client:
        client.flushall()
    return redis_server.url
