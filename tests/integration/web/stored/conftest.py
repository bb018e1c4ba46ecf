"""A web node with files, shared by the tests of this folder, and its callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from ops.embedded_redis import EmbeddedRedis
from tests.integration.web.serving import WebNode, web_node
from tests.integration.web.stored.forms import MEBIBYTE

KEYS = """
[[keys]]
name = "a"
secret = "a"
models = ["scripted"]
weight = 2.5

[[keys]]
name = "b"
secret = "b"
"""


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="session")
def node(node_folder: Path, redis_server: EmbeddedRedis, storage: Path) -> Iterator[WebNode]:
    keys = storage / "keys.toml"
    keys.write_text(KEYS)
    with web_node(
        node_folder,
        redis_server.url,
        batch_storage=storage / "files",
        api_keys_file=keys,
        batch_completion_windows="24h,30s",
        keepalive_seconds=0.2,
        max_file_bytes=80 * MEBIBYTE,
    ) as node:
        yield node


@pytest.fixture
async def client(node: WebNode, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30, headers={"authorization": "Bearer a"}) as http:
        yield http


@pytest.fixture
def sdk(node: WebNode, redis_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="a", max_retries=0) as client:
        yield client
