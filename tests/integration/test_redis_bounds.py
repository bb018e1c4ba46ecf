"""Commands on a slow, silent or resetting link: each ends in time, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from common.redis_clients import async_redis, sync_redis
from common.settings import Settings
from ops.chaos.tcp_proxy import TcpProxy

TIMEOUT = 0.5
ANSWER_WITHIN = 20 * TIMEOUT


@pytest.fixture
def link(redis_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture
def settings(link: TcpProxy) -> Settings:
    return Settings.of(redis_url=link.url, redis_timeout=TIMEOUT, redis_connect_timeout=TIMEOUT)


async def test_cancelled_commands_leave_their_answers_to_nobody(link: TcpProxy) -> None:
    """Half of the callers leave while their answer is on its way; the others get their own, whatever they used."""
    count = 600
    chance = random.Random(5)
    # Nobody waits in vain here, only for a busy machine.
    client = async_redis(Settings.of(redis_url=link.url, redis_timeout=30))
    await client.mset({f"key-{number}": f"value-{number}" for number in range(count)})
    script = client.register_script("return {redis.call('GET', KEYS[1]), ARGV[1]}")
    await script(keys=["key-0"], args=["x"])

    async def ask(number: int) -> None:
        key, value = f"key-{number}", f"value-{number}".encode()
        if number % 3 == 0:
            assert await client.get(key) == value
        elif number % 3 == 1:
            assert await script(keys=[key], args=[number]) == [value, str(number).encode()]
        else:
            async with client.pipeline(transaction=False) as pipe:
                pipe.get(key)
                pipe.echo(str(number))
                assert await pipe.execute() == [value, str(number).encode()]

    left = 0

    async def ask_and_leave(number: int) -> None:
        nonlocal left
        try:
            async with asyncio.timeout(chance.uniform(0, 0.008)):
                await ask(number)
        except TimeoutError:
            left += 1

    link.delay = 0.005
    for start in range(0, count, 12):
        outcomes = await asyncio.gather(
            *(ask(number) if number % 2 else ask_and_leave(number) for number in range(start, start + 12)),
            return_exceptions=True,
        )
        for number, outcome in enumerate(outcomes, start):
            assert outcome is None, (number, outcome)
    await client.aclose()
    # Of 300, from 130 on a busy machine to 200 do: enough of them to have mixed up answers.
    assert left > count / 20


@pytest.mark.parametrize("how", ["silent", "paused", "reset", "refused"])
async def test_every_command_ends_in_time_and_works_again_after(link: TcpProxy, settings: Settings, how: str) -> None:
    commands = async_redis(settings, max_connections=4)
    with sync_redis(settings) as client:
        assert await asyncio.to_thread(_soon, client)
        await answered(commands)
        started = time.monotonic()
        if how == "silent":
            link.hole = True
        elif how == "refused":
            link.stop()
        elif how == "paused":
            client.client_pause(int(4000 * TIMEOUT))
        else:
            link.reset()
        # After a reset a connection may be new already.
        failures = await asyncio.gather(*(commands.incr("a") for _ in range(12)), return_exceptions=True)
        assert all(isinstance(failure, redis.RedisError | int) for failure in failures)
        with_error = [failure for failure in failures if isinstance(failure, redis.RedisError)]
        if how != "reset":
            assert len(with_error) == 12
            with pytest.raises(redis.RedisError):
                await asyncio.to_thread(client.incr, "a")
        assert time.monotonic() - started < ANSWER_WITHIN
        if how == "silent":
            link.hole = False
        elif how == "refused":
            link.start()
        assert await asyncio.to_thread(_soon, client)
        # A command that was not answered in time may have been carried out all the same.
        await answered(commands)
        assert await asyncio.to_thread(client.get, "a") is None or how in ("paused", "reset")
    await commands.aclose()


async def answered(commands: redis.asyncio.Redis) -> None:
    """Every connection works; on a busy machine it may be too slow at first."""
    deadline = time.monotonic() + ANSWER_WITHIN
    while True:
        answers = await asyncio.gather(*(commands.ping() for _ in range(8)), return_exceptions=True)
        if answers == [True] * 8:
            return
        assert all(answer is True or isinstance(answer, redis.TimeoutError) for answer in answers), answers
        assert time.monotonic() < deadline, answers


def _soon(client: redis.Redis) -> bool:
    """A connection that broke unseen costs an error, and a paused server pauses on for a while."""
    deadline = time.monotonic() + ANSWER_WITHIN
    while True:
        try:
            return bool(client.ping())
        except redis.RedisError:
            if time.monotonic() > deadline:
                raise
