"""The primary changes under running requests: Sentinel promotes the replica, or somebody swaps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from common.client import GenerationClient
from common.errors import TgqError
from common.parameters import GenerationParameters
from common.redis_clients import async_redis, sync_redis
from common.settings import Settings
from ops.embedded_redis import HOST, EmbeddedRedis
from tests.integration.workers.support import MODEL, worker
from tests.redis_servers import MASTER_NAME, SentinelGroup

RESUMED_WITHIN = 40.0
"""A second until the primary counts as gone, a few for the election, and more of all that on a busy machine."""


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[GenerationClient]:
    client = GenerationClient(Settings.of(redis_url=url, model_id=MODEL, redis_timeout=1.5))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def text_of(client: GenerationClient, tokens: int, begun: asyncio.Event | None = None) -> str:
    job = client.new_job([1, 2], GenerationParameters(max_new_tokens=tokens, seed=0))
    text = ""
    async with client.generate(job) as stream:
        async for step in stream:
            text += "".join(token.text for token in step.tokens)
            if begun is not None:
                begun.set()
    return text


def expected(tokens: int) -> str:
    return "".join(f"{index} " for index in range(tokens))


async def served_again(client: GenerationClient) -> None:
    deadline = time.monotonic() + RESUMED_WITHIN
    while True:
        try:
            async with asyncio.timeout(15):
                assert await text_of(client, 3) == expected(3)
                return
        except (TgqError, TimeoutError):
            assert time.monotonic() < deadline, "not served again in time"
            await asyncio.sleep(0.1)


def give_way(group: SentinelGroup) -> None:
    """The orderly way: the Sentinel swaps primary and replica, both alive."""
    with redis.Redis(HOST, group.sentinel_ports[0], socket_timeout=5) as sentinel:
        sentinel.sentinel_failover(MASTER_NAME)


FAULTS: dict[str, Callable[[SentinelGroup], None]] = {
    "kill": lambda group: group.primary.kill(),
    "freeze": lambda group: group.primary.freeze(),
    "swap": give_way,
}


@pytest.mark.parametrize("how", FAULTS)
async def test_streams_and_workers_outlast_a_failover(tmp_path: Path, how: str) -> None:
    (tmp_path / "worker").mkdir()
    with SentinelGroup(tmp_path) as group:
        settings = {"redis_timeout": 1.0, "heartbeat_seconds": 0.2, "worker_dead_after": 2.5}
        with worker(group.url, tmp_path / "worker", settings, step_seconds=0.05) as process:
            async with client_of(group.url) as client:
                await served_again(client)
                begun = [asyncio.Event() for _ in range(4)]
                running = [asyncio.create_task(text_of(client, 60, event)) for event in begun]
                async with asyncio.timeout(20):
                    while not all(event.is_set() for event in begun):
                        assert not any(task.done() for task in running), running
                        await asyncio.sleep(0.02)
                await asyncio.gather(*(client.redis.ping() for _ in range(12)))
                FAULTS[how](group)
                async with asyncio.timeout(90):
                    assert await asyncio.gather(*running) == [expected(60)] * 4
                await served_again(client)
                # One connection found out; the others from before are not tried one after the other.
                await asyncio.gather(*(client.redis.ping() for _ in range(12)))
                with sync_redis(Settings.of(redis_url=group.url)) as commands:
                    assert commands.config_get("port") == {"port": str(group.replica.port)}
            process.terminate()
            assert process.wait() == 0
        assert len(process.noted("ready")) == 1, "the engine was restarted"


async def test_a_server_that_became_a_replica_is_left(tmp_path: Path) -> None:
    """Without Sentinel too: behind the same name may be another server by now."""
    with EmbeddedRedis(tmp_path / "a") as server, EmbeddedRedis(tmp_path / "b") as other:
        settings = Settings.of(redis_url=server.url)
        script = "return redis.call('SET', KEYS[1], 1)"
        with sync_redis(settings) as client:
            commands = async_redis(settings)
            before, before_async = client.client_id(), await commands.client_id()
            client.replicaof(HOST, str(other.port))
            with pytest.raises(redis.ConnectionError, match="become a replica"):
                client.set("a", 1)
            with pytest.raises(redis.ConnectionError, match="become a replica"):
                client.eval(script, 1, "a")
            with pytest.raises(redis.ConnectionError, match="become a replica"):
                await commands.set("a", 1)
            async with commands.pipeline(transaction=False) as pipe:
                pipe.get("a")
                pipe.set("a", 1)
                with pytest.raises(redis.ConnectionError, match="become a replica"):
                    await pipe.execute()
            client.replicaof("NO", "ONE")
            assert client.set("a", 2)
            assert await commands.get("a") == b"2"
            assert client.client_id() != before
            assert await commands.client_id() != before_async
            await commands.aclose()
