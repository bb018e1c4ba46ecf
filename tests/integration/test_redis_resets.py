"""A connection that was reset behind our back, on the event loop that web processes run on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from common.redis_clients import async_redis
from common.settings import Settings


def on_uvloop(redis_url: str, action: Callable[[redis.asyncio.Redis], Awaitable[None]]) -> None:
    async def run() -> None:
        client = async_redis(Settings.of(redis_url=redis_url))
        try:
            await action(client)
        finally:
            await client.aclose()

    uvloop.run(run())


def test_a_connection_that_was_reset_is_dialled_anew(redis_url: str) -> None:
    async def action(client: redis.asyncio.Redis) -> None:
        connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        await client.connection_pool.release(connection)
        assert await client.ping()

    on_uvloop(redis_url, action)


def test_one_reset_under_a_command_is_a_connection_error(redis_url: str) -> None:
    async def action(client: redis.asyncio.Redis) -> None:
        connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        with pytest.raises(RedisConnectionError):
            await connection.send_command("PING")
        await client.connection_pool.release(connection)
        assert await client.ping()

    on_uvloop(redis_url, action)
