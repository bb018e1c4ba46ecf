"""Two endurance runs with the scripted model: what grows under many short requests, and whose words reach whom."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from random import Random

import httpx
import redis
from rich.table import Table

from ops.chaos.cluster import Cluster
from ops.chaos.crowd import Crowd
from ops.chaos.traces import until_no_trace
from ops.process_figures import children, open_files, resident_mib, threads

CLIENTS = 48
WARM_UP = 0.1
"""Share of the requests before the first measurement: caches, pools and allocators fill up."""
LEAST_WARM_UP = 500
"""Each process must have met every kind of request by then; of a run that is too short for it, half."""
SAMPLES = 9
MOST_GROWTH = {"MiB": 24.0, "files": 24.0, "threads": 4.0, "tasks": 16.0, "keys that stay": 4.0, "connections": 24.0}
"""Connections to Redis are kept, 16 a process at most, and made as they are needed."""
PAUSES = (0.05, 0.4)
"""Seconds that a slowed Redis stands still, again and again."""

Figures = dict[str, float]
Say = Callable[[str], None]


async def run_leaks(cluster: Cluster, *, requests: int, rng: Random, say: Say) -> tuple[list[Figures], Crowd]:
    """Short requests, 20 % of whose clients leave and 5 % read slowly; the figures after the warm-up and on the way."""
    crowd = Crowd(cluster.addresses, rng, clients=CLIENTS, leaving=0.2, slow=0.05, repeats=2)
    samples = []
    warm_up = min(max(round(requests * WARM_UP), LEAST_WARM_UP), requests // 2)
    for count in (warm_up, *[(requests - warm_up) // SAMPLES] * SAMPLES):
        await crowd.send(max(1, count))
        await until_no_trace(cluster)
        samples.append(await measure(cluster))
        memory = sum(value for name, value in samples[-1].items() if name.endswith(": MiB"))
        say(f"{crowd.sent} requests: {dict(crowd.verdicts)}, {memory:.0f} MiB in all processes")
    return samples, crowd


async def run_markers(cluster: Cluster, *, requests: int, rng: Random, say: Say) -> Crowd:
    """Marked requests, 40 % of whose clients leave, on a Redis that stands still every other moment."""
    crowd = Crowd(cluster.addresses, rng, clients=CLIENTS, leaving=0.4, slow=0.05, repeats=4)

    async def slow_down() -> None:
        while True:
            seconds = rng.uniform(*PAUSES)
            await asyncio.to_thread(cluster.client.client_pause, int(seconds * 1000))
            await asyncio.sleep(seconds + rng.uniform(0.1, 1.0))

    pauses = asyncio.create_task(slow_down())
    try:
        for _ in range(10):
            await crowd.send(max(1, requests // 10))
            say(f"{crowd.sent} requests: {dict(crowd.verdicts)}")
    finally:
        pauses.cancel()
        await asyncio.wait([pauses])
    await until_no_trace(cluster)
    return crowd


async def measure(cluster: Cluster) -> Figures:
    """Everything that must not grow with the number of requests."""
    figures: Figures = {}
    processes = {f"{member.name}": member.pid for member in cluster.members}
    processes |= {f"{web.name} process": children(web.pid)[0] for web in cluster.web}
    for worker in cluster.workers:
        engine = await cluster.engine_pid(worker)
        if engine is not None:
            processes[f"{worker.name} engine"] = engine
    for name, pid in processes.items():
        figures |= {f"{name}: MiB": resident_mib(pid), f"{name}: files": open_files(pid)}
        figures[f"{name}: threads"] = threads(pid)
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        for web in cluster.web:
            host, port = web.address or ("", 0)
            metrics = (await client.get(f"http://{host}:{port}/metrics")).text
            found = re.search(r"^tgq_tasks (\S+)$", metrics, re.MULTILINE)
            figures[f"{web.name}: tasks"] = float(found[1]) if found else -1.0
    return figures | await asyncio.to_thread(_measure_redis, cluster.client)


def _measure_redis(client: redis.Redis) -> Figures:
    names = list(client.scan_iter(count=1000))
    staying = [name for name in names if client.ttl(name) == -1]
    information = client.info()
    return {
        "Redis: keys that stay": len(staying),
        "Redis: keys that expire": len(names) - len(staying),
        "Redis: connections": information["connected_clients"],
        "Redis: used memory, KiB": information["used_memory"] / 1024,
    }


def growth(samples: list[Figures]) -> tuple[Table, list[str]]:
    """All figures at the first and the last sample, and those that grew by more than they may."""
    table = Table("figure", "warm", "end", "growth", "at most")
    problems = []
    first, last = samples[0], samples[-1]
    for name, warm in first.items():
        end = last.get(name, 0.0)
        most = MOST_GROWTH.get(name.partition(": ")[2])
        table.add_row(name, f"{warm:.0f}", f"{end:.0f}", f"{end - warm:+.1f}", "" if most is None else f"{most:g}")
        if most is not None and end - warm > most:
            problems.append(f"{name} grew from {warm:.1f} to {end:.1f}")
    return table, problems
