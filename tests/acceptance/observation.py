"""What can be seen of a running service from outside: Redis, metrics, processes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import redis

from common.keys import Keys
from common.queue_depth import queue_depth_sync
from common.registry import live_workers_sync
from common.wire import WorkerRecord
from ops.local_service import LocalService, Part
from ops.process_figures import children

KEYS = Keys()


async def until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until `condition()`, a plain or an asynchronous function, is true."""
    started = time.monotonic()
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        assert time.monotonic() - started < seconds, f"still waiting for {what} after {seconds:g} s"
        await asyncio.sleep(0.02)


def sends_traces(pid: int) -> bool:
    """Whether a process has loaded what it takes to send traces, which nothing else here has a use for."""
    return "google/_upb" in Path(f"/proc/{pid}/maps").read_text()


class Observer:
    """Looks at a service's Redis. Close it, or use it in a `with` block."""

    def __init__(self, service: LocalService, model: str = "scripted") -> None:
        self._queues = [KEYS.queue(model, "interactive"), KEYS.queue(model, "batch")]
        self.redis = redis.Redis.from_url(service.redis_url, socket_timeout=5)

    def close(self) -> None:
        self.redis.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def workers(self) -> list[WorkerRecord]:
        return live_workers_sync(self.redis, KEYS, 10.0)

    def worker(self, pid: int) -> WorkerRecord:
        return next(record for record in self.workers() if record.pid == pid)

    def running(self) -> int:
        """Jobs that engines hold."""
        return sum(record.running for record in self.workers())

    def pulled(self) -> int:
        """Jobs that workers hold and their engines have not accepted."""
        return sum(record.waiting for record in self.workers())

    def generated(self) -> int:
        """Tokens that the engines have made, as told with their last heartbeats."""
        return sum(record.stats.generated_tokens for record in self.workers())

    def queued(self) -> int:
        return sum(queue_depth_sync(self.redis, queue).jobs for queue in self._queues)

    def permits(self) -> int:
        """Permits held by all web processes."""
        return sum(int(count) for count in cast("list[bytes]", self.redis.hvals(KEYS.admission)))

    def reply_channels(self) -> set[bytes]:
        """Channels that web processes listen to."""
        return set(cast("list[bytes]", self.redis.pubsub_channels(KEYS.reply("*"))))

    def lasting_keys(self) -> set[bytes]:
        """Keys that no expiry removes."""
        return {key for key in self.redis.scan_iter(count=1000) if self.redis.ttl(key) == -1}

    def unacknowledged(self) -> int:
        return sum([int(str(self.redis.hlen(KEYS.unacked(record.id)))) for record in self.workers()])

    def idle(self) -> bool:
        """Whether no trace of a request is left in Redis and at the workers, engines included."""
        records = self.workers()
        return (
            not self.queued()
            and not self.permits()
            and not self.unacknowledged()
            and all(not (record.running or record.waiting or record.stats.running) for record in records)
            and all(not (record.stats.waiting or record.stats.reserved_tokens) for record in records)
        )

    async def until_idle(self, seconds: float = 20.0) -> None:
        await until(self.idle, seconds, "the end of all requests")

    async def until_heard(self, seconds: float = 30.0) -> None:
        """Until every worker has said what it does now."""
        told = self._heartbeats()
        await until(
            lambda: all(beat > told.get(worker, 0.0) for worker, beat in self._heartbeats().items()),
            seconds,
            "heartbeats",
        )

    def _heartbeats(self) -> dict[bytes, float]:
        return dict(cast("list[tuple[bytes, float]]", self.redis.zrange(KEYS.workers, 0, -1, withscores=True)))


def metric(text: str, name: str) -> float:
    """The sum of all samples of `name`, with or without labels, in a `/metrics` text."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


async def read_metric(client: httpx.AsyncClient, name: str, url: str = "") -> float:
    return metric((await client.get(f"{url}/metrics")).text, name)


async def in_flight(client: httpx.AsyncClient, *urls: str) -> float:
    return sum([await read_metric(client, "tgq_requests_in_flight", url) for url in urls or ("",)])


def named_processes(service: LocalService, observer: Observer) -> dict[str, int]:
    """Every process that serves: web processes below their masters, workers, engines."""
    found = {
        f"{part.name} process {index}": pid for part in service.web for index, pid in enumerate(children(part.pid))
    }
    for index, record in enumerate(observer.workers()):
        assert record.engine_pid is not None
        found |= {f"worker {index}": record.pid, f"engine {index}": record.engine_pid}
    return found


def assert_alive(*parts: Part) -> None:
    for part in parts:
        assert part.alive, f"{part.name} ended with {part.process.returncode}:\n{part.tail()}"
