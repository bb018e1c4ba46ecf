"""What is done to a cluster: each fault strikes, lasts, and is undone; what it kills the supervisor starts again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import redis

from ops.chaos.client import Manner
from ops.chaos.cluster import Cluster, Member

RESTART_LIMIT = 120.0
"""Seconds a process has to be ready again."""

Strike = Callable[[Cluster, Random], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """Returns from `strike` when it is undone, or when healing is up to the service."""

    name: str
    strike: Strike
    errors: bool = False
    """Streams may end with a typed error."""
    cuts: bool = False
    """Clients may lose their connection."""
    manner: Manner | None = None
    """Half of the clients behave like this."""


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def _busy_worker(cluster: Cluster, rng: Random) -> Member:
    """One of the workers that run something, if there is one: a fault that hits nobody shows nothing."""
    records = await cluster.records()
    busy = [worker for worker in cluster.workers if worker.pid in records and records[worker.pid].running]
    return rng.choice(busy or cluster.workers)


async def _worker_kill(cluster: Cluster, rng: Random) -> None:
    await cluster.kill(await _busy_worker(cluster, rng))


async def _worker_freeze(cluster: Cluster, rng: Random) -> None:
    worker = await _busy_worker(cluster, rng)
    await _frozen(worker.pid, rng.uniform(1, 8))


async def _frozen(pid: int | None, seconds: float) -> None:
    _send(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _send(pid, signal.SIGCONT)


async def _worker_stop(cluster: Cluster, rng: Random) -> None:
    cluster.terminate(await _busy_worker(cluster, rng))


async def _engine_kill(cluster: Cluster, rng: Random) -> None:
    _send(await cluster.engine_pid(await _busy_worker(cluster, rng)), signal.SIGKILL)


async def _engine_freeze(cluster: Cluster, rng: Random) -> None:
    # For longer than its worker waits for it; that one kills it.
    await _frozen(await cluster.engine_pid(await _busy_worker(cluster, rng)), rng.uniform(4, 6))


async def _web_kill(cluster: Cluster, rng: Random) -> None:
    await cluster.kill(rng.choice(cluster.web))


async def _web_stop(cluster: Cluster, rng: Random) -> None:
    cluster.terminate(rng.choice(cluster.web))


async def _redis_restart(cluster: Cluster, rng: Random) -> None:
    await _restart_redis(cluster, rng, wipe=False)


async def _redis_wipe(cluster: Cluster, rng: Random) -> None:
    """A restart that loses everything, as without persistence."""
    await _restart_redis(cluster, rng, wipe=True)


async def _restart_redis(cluster: Cluster, rng: Random, *, wipe: bool) -> None:
    async with cluster.redis_turn:
        await asyncio.to_thread(cluster.redis.kill)
        if wipe:
            await asyncio.to_thread(shutil.rmtree, cluster.redis.directory, ignore_errors=True)
        await asyncio.sleep(rng.uniform(0, 2))
        await asyncio.to_thread(cluster.redis.start)


async def _redis_pause(cluster: Cluster, rng: Random) -> None:
    async with cluster.redis_turn:
        seconds = rng.uniform(0.5, 4)
        with suppress(redis.RedisError):  # Too slow to take the order: that will do.
            await asyncio.to_thread(cluster.client.client_pause, int(seconds * 1000))
        await asyncio.sleep(seconds)


async def _redis_freeze(cluster: Cluster, rng: Random) -> None:
    async with cluster.redis_turn:
        cluster.redis.freeze()
        try:
            await asyncio.sleep(rng.uniform(0.5, 6))
        finally:
            cluster.redis.thaw()


def _blackhole(least: float, most: float) -> Strike:
    async def strike(cluster: Cluster, rng: Random) -> None:
        link = (await _busy_worker(cluster, rng)).link
        assert link is not None
        link.hole = True
        try:
            await asyncio.sleep(rng.uniform(least, most))
        finally:
            link.hole = False

    return strike


async def _slow_redis(cluster: Cluster, rng: Random) -> None:
    """Everything said to Redis, and everything it says, takes its time."""
    links = [member.link for member in cluster.members if member.link is not None]
    delay = rng.uniform(0.02, 0.2)
    try:
        for link in links:
            link.delay = delay
        await asyncio.sleep(rng.uniform(2, 6))
    finally:
        for link in links:
            link.delay = 0.0


async def _resets(cluster: Cluster, rng: Random) -> None:
    """All connections of one process to Redis are reset, three times in a row."""
    link = rng.choice(cluster.members).link
    assert link is not None
    for _ in range(3):
        await asyncio.to_thread(link.reset)
        await asyncio.sleep(rng.uniform(0, 1))


async def _rolling_restart(cluster: Cluster, rng: Random) -> None:
    """All workers and web nodes, one after the other, each when the one before serves again."""
    for member in (*cluster.workers, *cluster.web):
        starts = member.starts
        cluster.terminate(member)
        await cluster.until_ready(member, RESTART_LIMIT, starts + 1)


async def _nothing(cluster: Cluster, rng: Random) -> None:
    """The clients are the fault."""


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("worker-kill", _worker_kill),
        Fault("worker-stop", _worker_stop),
        Fault("worker-freeze", _worker_freeze),
        Fault("engine-kill", _engine_kill),
        Fault("engine-freeze", _engine_freeze),
        Fault("web-kill", _web_kill, cuts=True),
        Fault("web-stop", _web_stop),
        Fault("redis-restart", _redis_restart),
        Fault("redis-wipe", _redis_wipe, errors=True),
        Fault("redis-pause", _redis_pause),
        Fault("redis-freeze", _redis_freeze),
        Fault("redis-slow", _slow_redis),
        Fault("resets", _resets),
        Fault("blackhole", _blackhole(4, 12)),
        Fault("blackhole-60", _blackhole(60, 60)),
        Fault("rolling-restart", _rolling_restart),
        Fault("slow-clients", _nothing, manner="stalls"),
        Fault("disconnects", _nothing, manner="leaves"),
    )
}
MIXED = tuple(name for name in FAULTS if name != "blackhole-60")
"""Those of a mixed run, unless others are asked for."""
