"""What requests leave behind: nothing, some seconds after the last one."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import cast, get_args

import redis

from common.queue_depth import queue_depth_sync
from common.wire import JobClass
from ops.chaos.cluster import Cluster, NotWhole

IDLE_SECONDS = 15.0


async def until_no_trace(cluster: Cluster, timeout: float = IDLE_SECONDS) -> None:
    """Wait until no queue, worker, engine or permit knows of any request.

    Raises:
        NotWhole: says what is left.
    """
    deadline = monotonic() + timeout
    while left := await _traces(cluster):
        if monotonic() > deadline:
            raise NotWhole(f"{timeout:g} s after the last request there are: {', '.join(left)}")
        await asyncio.sleep(0.1)


async def _traces(cluster: Cluster) -> list[str]:
    records = (await cluster.records()).values()
    try:
        counts = await asyncio.to_thread(_counts_in_redis, cluster, [record.id for record in records])
    except redis.RedisError as error:
        return [type(error).__name__]
    for record in records:
        held = {
            "jobs": record.running + record.waiting,
            "sequences": record.stats.running + record.stats.waiting,
            "KV-cache tokens": record.stats.reserved_tokens,
        }
        counts |= {f"{what} at worker {record.pid}": count for what, count in held.items()}
    return [f"{count} {what}" for what, count in counts.items() if count]


def _counts_in_redis(cluster: Cluster, workers: list[str]) -> dict[str, int]:
    client, keys = cluster.client, cluster.keys
    counts = {
        f"jobs in queue {job_class}": queue_depth_sync(client, keys.queue(cluster.model, job_class)).jobs
        for job_class in get_args(JobClass)
    }
    counts |= {f"unacknowledged jobs of {worker}": int(str(client.hlen(keys.unacked(worker)))) for worker in workers}
    counts["permits"] = sum(int(count) for count in cast("list[bytes]", client.hvals(keys.admission)))
    return counts
