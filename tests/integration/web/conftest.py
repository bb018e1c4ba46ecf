"""Web nodes shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from ops.embedded_redis import EmbeddedRedis
from tests.integration.web.serving import WebNode, web_node


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """This folder's own: nodes that live to the end return the jobs of whatever looks like a dead worker."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis-web")) as server:
        yield server


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="session")
def shared_node(node_folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    with web_node(node_folder, redis_server.url, max_concurrent_requests=8, keepalive_seconds=0.3) as node:
        yield node


@pytest.fixture
async def client(shared_node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the shared node, with Redis emptied."""
    async with httpx.AsyncClient(base_url=shared_node.url, timeout=30) as http:
        yield http


@pytest.fixture(scope="session")
def guarded_node(node_folder: Path, redis_server: EmbeddedRedis) -> Iterator[WebNode]:
    with web_node(
        node_folder, redis_server.url, api_key="secret", cors_allow_origin="https://a.example,https://b.example"
    ) as node:
        yield node


@pytest.fixture
async def guarded(guarded_node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a node with an API key and a list of origins."""
    async with httpx.AsyncClient(base_url=guarded_node.url, timeout=30) as http:
        yield http
