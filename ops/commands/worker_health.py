"""`tgq worker-health`: whether the worker of this host lives, for the probes of containers."""

from __future__ import annotations

import socket
import sys

import redis

from common.keys import Keys
from common.redis_clients import sync_redis
from common.registry import live_workers_sync
from common.wire import WorkerRecord
from ops.configuration import Configuration


def run(configuration: Configuration, *, loaded: bool) -> int:
    """Print what the heartbeats say; returns the exit status (0: healthy).

    A Redis that is away is no fault of the worker, and starting it again would not help: it counts as alive, but not as
    loaded.
    """
    settings, host = configuration.settings, socket.gethostname()
    try:
        with sync_redis(settings) as client:
            workers = live_workers_sync(client, Keys(settings.key_prefix), settings.worker_dead_after)
    except (redis.RedisError, ValueError) as error:
        print(f"tgq: Redis does not answer: {type(error).__name__}", file=sys.stderr)
        return 1 if loaded else 0
    here = [worker for worker in workers if worker.host == host]
    for worker in here:
        print(f"{worker.id} {worker.state} {worker.progress:.0%}")
    if not here:
        print(f"tgq: no heartbeat of a worker on {host}", file=sys.stderr)
    return 0 if any(_has_model(worker) or not loaded for worker in here) else 1


def _has_model(worker: WorkerRecord) -> bool:
    """A worker that drains, or whose engine is being started again, has had it: it is no longer starting."""
    return worker.state != "starting"
